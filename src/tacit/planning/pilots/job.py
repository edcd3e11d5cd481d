"""A short real run on this machine: what to run, and the losses that come back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tacit.compare.runners import usable_cores
from tacit.runtime.launch import launch
from tacit.runtime.launcher.machines import RunSettings

_MOST_PER_CORE: Final = 4
"""Processes of a pilot on a core, at most."""
Curve = list[tuple[int, float]]
"""Losses by step."""


class PilotFailed(Exception):
    """A pilot ended without losses; the message says why."""


@dataclass(frozen=True, kw_only=True)
class PilotJob:
    """A script, or a workload with ``settings``, and how far to run it.

    limit_s: of a script from ``tacit.attach`` on, of a workload from the start of its process on.
    """

    script: str | None = None
    arguments: tuple[str, ...] = ()
    workload: str | None = None
    schedule: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 200
    limit_s: float = 30.0
    threads: int = 1

    def rows(self, strategy: str, workers: int) -> list[tuple[int, float, float]]:
        """Run ``strategy`` on ``workers`` processes of this machine; return step, time and loss of its history."""
        if workers > _MOST_PER_CORE * usable_cores():
            raise PilotFailed(f"{workers} processes are too many for the {usable_cores()} cores of this machine")
        with tempfile.TemporaryDirectory(prefix="tacit-pilot-") as scratch:
            job, out = Path(scratch) / "job.json", Path(scratch) / "losses.json"
            job.write_text(json.dumps({**asdict(self), "strategy": strategy, "out": str(out)}))
            arguments = ["tacit.planning.pilots.worker", str(job)]
            failed = launch(
                arguments, RunSettings.new(workers), threads=self.threads, logs=Path(scratch) / "logs", shows_all=False
            ).failed
            if out.exists():
                return [(int(step), float(time_s), float(loss)) for step, time_s, loss in json.loads(out.read_text())]
        first = next((one for one in failed if one.error or one.output), None)
        lines = (first.error or first.output).strip().splitlines() if first is not None else []
        raise PilotFailed(lines[-1] if lines else "it ended without losses")


def job_of(path: Path) -> dict[str, Any]:
    """Return what ``PilotJob.rows`` wrote for its workers."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def write_rows(path: str, history: list[dict[str, Any]]) -> None:
    """Write the losses of a history for ``PilotJob.rows``."""
    rows = [(row["step"], row["time_s"], row["loss"]) for row in history if row["loss"] is not None]
    part = Path(f"{path}.part")
    part.write_text(json.dumps(rows))
    part.replace(path)
