"""The real runs of the fidelity benchmark: each is written into a folder, and none is made twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.cells import (
    ALL_REDUCE,
    BURSTS_KB,
    CALIBRATED,
    DDP,
    METHODS,
    RATES_BITS_PER_S,
    Method,
    Place,
)
from benchmarks.peers import Crew, Failed
from tests.runtime import namespaces

PATIENCE_S: Final = 120.0
DDP_WARM_UP: Final = 2
_LOG_LINES: Final = 20


@dataclass(frozen=True)
class ThisMachine(namespaces.Host):
    """A host that is this machine itself: processes run in its own namespace, without root."""

    def command(self, *words: str) -> list[str]:
        return list(words)


@dataclass(frozen=True)
class Cell:
    """One real run: where it is kept."""

    place: Place
    method: str
    turn: int | None  # None: a run for calibration
    root: Path

    def __str__(self) -> str:
        return f"{self.place}: {self.method}{' (calibration)' if self.turn is None else ''}"

    @property
    def folder(self) -> Path:
        """The run folder; DDP has none."""
        part = "calibration" if self.turn is None else f"turn-{self.turn}"
        return self.root / self.place.folder / part / re.sub(r"[^a-z0-9]+", "-", self.method.lower()).strip("-")

    @property
    def about_file(self) -> Path:
        """What is known about the run besides the run folder; it exists once the run is complete."""
        return self.folder.with_suffix(".json")

    @property
    def steps(self) -> int:
        return self.place.calibration_steps if self.turn is None else self.place.steps(self.method)

    @property
    def seed(self) -> int:
        return self.turn or 0

    def about(self) -> dict[str, Any] | None:
        """Return what was noted about the run; None if it was not made yet."""
        if not self.about_file.is_file():
            return None
        noted: dict[str, Any] = json.loads(self.about_file.read_text())
        return noted


def cells_of(place: Place, root: Path, turns: int, methods: Iterable[str] = METHODS) -> list[Cell]:
    """Return the runs of a place: calibration first, then all methods in each turn."""
    timed = [Cell(place, method, turn, root) for turn in range(turns) for method in methods]
    return [*(Cell(place, method, None, root) for method in CALIBRATED), *timed]


@dataclass
class Recorder:
    """Makes the runs that a folder lacks, and tells what it does."""

    scratch: Path
    failures: dict[str, str] = field(default_factory=dict)  # by cell, with the reason

    def record(self, cells: Iterable[Cell]) -> None:
        """Make the missing runs of one place; a run that fails leaves a reason, and the others go on."""
        missing = [cell for cell in cells if cell.about() is None]
        while missing:
            with contextlib.suppress(Failed), crew_at(missing[0].place, self.scratch) as crew:
                try:
                    priority = self._prepare(crew, missing[0])
                except Failed as failed:
                    self.failures |= {str(cell): str(failed) for cell in missing}
                    missing = []
                    raise
                while missing:
                    self._run(crew, missing.pop(0), priority)

    def _prepare(self, crew: Crew, cell: Cell) -> str:
        """Set the priority of all ranks and return it; run what calibrates once before it is recorded.

        First calls of compressors take longer, until the allocator keeps the memory that they need.
        """
        if cell.place.is_quick:
            return "usual"
        priority: str = crew.ask(PATIENCE_S, do="prepare", pinned=not cell.place.sleep_s)[0]["priority"]
        for method in CALIBRATED:
            crew.ask(PATIENCE_S, **_command(cell, METHODS[method], cell.place.calibration_steps, None))
        return priority

    def _run(self, crew: Crew, cell: Cell, priority: str) -> None:
        begun_s, load = time.perf_counter(), os.getloadavg()[0]
        cell.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            if cell.method == DDP:
                asked = {"do": "ddp", "steps": cell.steps - 1, "warm_up": DDP_WARM_UP, **_computation(cell)}
            else:
                asked = _command(cell, METHODS[cell.method], cell.steps, cell.folder)
            answers = crew.ask(PATIENCE_S, **asked)
        except Failed as failed:
            self.failures[str(cell)] = str(failed)
            print(f"  {cell}: FAILED: {failed}", flush=True)
            raise
        took_s = time.perf_counter() - begun_s
        noted = {
            "method": cell.method,
            "place": str(cell.place),
            "steps": cell.steps,
            "seed": cell.seed,
            "priority": priority,
            "load": round(load, 1),
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "seconds": round(took_s, 1),
            **({"ends_s": [answer["times_s"] for answer in answers]} if cell.method == DDP else {}),
        }
        cell.about_file.write_text(json.dumps(noted) + "\n")
        print(f"  {cell}: {cell.steps} steps, {took_s:.1f} s, load {load:.1f}", flush=True)


def _command(cell: Cell, method: Method, steps: int, folder: Path | None) -> dict[str, Any]:
    target = None if folder is None else str(folder.resolve())
    # Where steps compute, a round takes processor time from the steps beside it.
    is_beside = cell.turn is None and cell.method == ALL_REDUCE and not cell.place.sleep_s
    return {
        "do": "train",
        "strategy": str(method.strategy),
        "steps": steps,
        "folder": target,
        "beside": is_beside and folder is not None,
        **_computation(cell),
    }


def _computation(cell: Cell) -> dict[str, Any]:
    place = cell.place
    sleeps_s = [place.sleep_of(rank) for rank in range(place.hosts)]
    # Each run has sleeps of its own: otherwise three calibration runs would see the same twelve.
    return {"model": place.model, "sleeps_s": sleeps_s, "sigma": place.sigma, "draws": str(cell), "seed": cell.seed}


@contextlib.contextmanager
def crew_at(place: Place, scratch: Path, name: str = "fidelity") -> Iterator[Crew]:
    """Start a rank on each host of a place; end them and take the hosts down, whatever happens.

    name: of the module in benchmarks.peer_loops, without "_loops".
    """
    with hosts_of(place) as hosts:
        port = free_port() if place.is_quick else 29500
        crew = Crew(name, hosts, scratch, port)
        try:
            yield crew
        except Failed:
            print(*(scratch / f"{name}.log").read_text().splitlines()[-_LOG_LINES:], sep="\n", file=sys.stderr)
            raise
        finally:
            crew.close()


@contextlib.contextmanager
def hosts_of(place: Place) -> Iterator[list[namespaces.Host]]:
    """Set up the hosts of a place, or name this machine for a quick one."""
    if place.is_quick:
        yield [ThisMachine("", f"host{rank}", "127.0.0.1") for rank in range(place.hosts)]
        return
    rate = RATES_BITS_PER_S[place.network]
    with namespaces.hosts(place.hosts, rate_bits_per_s=rate, burst_kb=BURSTS_KB.get(place.network, 256)) as hosts:
        yield hosts


def free_port() -> int:
    """Return the first of two neighbouring ports that are free now."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
