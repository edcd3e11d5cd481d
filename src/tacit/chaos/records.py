"""The records that workers of a run with faults write: which process a seat has, and what each life did."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LAST_BYTES: Final = 2000
_NAME: Final = re.compile(r"seat-(\d+)-life-(\d+)\.jsonl")


@dataclass(frozen=True)
class Life:
    """The record of one life of a seat."""

    seat: int
    life: int
    rows: list[dict[str, Any]]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "step" in row and "event" not in row]

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the last row of an event; None without one."""
        return next((row for row in reversed(self.rows) if row.get("event") == name), None)


def read_lives(folder: Path) -> list[Life]:
    """Return the records of all lives, by seat and life."""
    lives = []
    for path in folder.glob("seat-*.jsonl"):
        seat, life = _numbers(path)
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        lives.append(Life(seat, life, rows))
    return sorted(lives, key=lambda one: (one.seat, one.life))


def process_of(folder: Path, seat: int) -> int | None:
    """Return the process of the seat's latest life, if it has attached and runs."""
    paths = sorted(folder.glob(f"seat-{seat}-life-*.jsonl"), key=lambda path: _numbers(path)[1])
    if not paths:
        return None
    lines = paths[-1].read_text().splitlines()
    if not any('"attached"' in line for line in lines[:5]):
        return None
    process = int(json.loads(lines[0])["process"])
    return process if is_running(process) else None


def processes(folder: Path) -> list[int]:
    """Return all processes that the records name."""
    return [
        int(json.loads(path.read_text().partition("\n")[0])["process"])
        for path in folder.glob("seat-*.jsonl")
        if path.stat().st_size
    ]


def is_running(process: int) -> bool:
    """Whether ``process`` exists and has not ended."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def have_attached(folder: Path, workers: int) -> bool:
    """Whether the first life of every seat has attached."""
    paths = [folder / f"seat-{seat}-life-1.jsonl" for seat in range(workers)]
    return all(path.exists() and '"attached"' in path.read_text() for path in paths)


def latest_updates(folder: Path) -> int:
    """Return the most updates that any worker has, by the last lines of the records."""
    most = 0
    for path in folder.glob("seat-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            lines = [line for line in file.read().split(b"\n")[1:] if line.endswith(b"}")]
        most = max([most, *(json.loads(line).get("updates", 0) for line in lines)])
    return most


def size_of(folder: Path) -> int:
    """Return the bytes of all records: they grow while any worker takes steps."""
    return sum(path.stat().st_size for path in folder.glob("seat-*.jsonl"))


def _numbers(path: Path) -> tuple[int, int]:
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1]), int(found[2])
