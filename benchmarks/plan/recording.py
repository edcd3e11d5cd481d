"""The real runs of the plan benchmark: each is kept in a folder with the losses of its models, and none is made twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.cells import CALIBRATED, CALIBRATION_STEPS, METHODS
from benchmarks.fidelity.recording import PATIENCE_S, crew_at
from benchmarks.fidelity.workloads import LEARNING_RATE
from benchmarks.peers import Crew, Failed
from benchmarks.plan.places import EVALUATE_EVERY, Place
from tacit.strategies import Strategy

_ATTEMPTS: Final = 2


@dataclass(frozen=True)
class RealRun:
    """One run: hosts, strategy, learning rate, seed and length."""

    place: Place  # with the hosts that take part
    strategy: Strategy[Any]
    steps: int
    root: Path
    seed: int = 0
    lr: float = LEARNING_RATE

    def __str__(self) -> str:
        return f"{self.place}: {self.strategy}, lr {self.lr:g}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The run folder; DDP has none."""
        name = re.sub(r"[^a-z0-9]+", "-", str(self.strategy).lower()).strip("-")
        digest = hashlib.sha256(f"{self.strategy} {self.lr} {self.seed}".encode()).hexdigest()[:6]
        return self.root / "runs" / self.place.folder / f"{name[:60]}-{digest}"

    @property
    def file(self) -> Path:
        """Times and losses; it exists once the run is complete."""
        return self.folder.with_suffix(".json")

    def measured(self) -> dict[str, Any] | None:
        """Return times and losses of the run; None if it was not made, or is too short."""
        if not self.file.is_file():
            return None
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found if found["steps"] >= self.steps else None


def reached(measured: dict[str, Any], loss: float) -> tuple[int, float] | None:
    """Return the step and the seconds at which the kept models first had at most ``loss``; None: never."""
    return next(((step, time_s) for step, time_s, value in measured["rows"] if value <= loss), None)


@dataclass
class Recorder:
    """Makes the runs that are missing."""

    failures: dict[str, str] = field(default_factory=dict)  # by run, with the reason

    def record(self, runs: Iterable[RealRun]) -> None:
        """Make the missing runs, those of one place one after the other."""
        by_place: dict[Place, list[RealRun]] = {}
        for run in dict.fromkeys(runs):
            if run.measured() is None:
                by_place.setdefault(run.place, []).append(run)
        for place, missing in by_place.items():
            for _ in range(_ATTEMPTS):
                with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(Failed):
                    self._record_at(place, [run for run in missing if run.measured() is None], Path(scratch))

    def _record_at(self, place: Place, runs: list[RealRun], scratch: Path) -> None:
        if not runs:
            return
        with crew_at(place, scratch, "plan") as crew:
            priority = prepared(crew, place, scratch)
            for run in runs:
                self._run(crew, run, scratch, priority)

    def _run(self, crew: Crew, run: RealRun, scratch: Path, priority: str) -> None:
        begun_s, load = time.perf_counter(), os.getloadavg()[0]
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            asked = _command(run.place, run.strategy, run.steps, run.seed, run.lr)
            answers = crew.ask(PATIENCE_S, **asked, folder=str(run.folder.resolve()), scratch=str(scratch))
        except Failed as failed:
            self.failures[str(run)] = str(failed)
            print(f"  {run}: FAILED: {failed}", flush=True)
            raise
        self.failures.pop(str(run), None)
        noted = {
            "place": str(run.place),
            "strategy": str(run.strategy),
            "steps": run.steps,
            "seed": run.seed,
            "lr": run.lr,
            "priority": priority,
            "load": round(load, 1),
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "seconds": round(time.perf_counter() - begun_s, 1),
            **answers[0],
        }
        run.file.write_text(json.dumps(noted) + "\n")
        print(f"  {run}: {run.steps} steps, {noted['seconds']} s, load {load:.1f}", flush=True)


def prepared(crew: Crew, place: Place, scratch: Path) -> str:
    """Set the priority of all ranks and return it; run each kind of round once, so that memory is allocated."""
    if place.is_quick:
        return "usual"
    priority: str = crew.ask(PATIENCE_S, do="prepare")[0]["priority"]
    for method in CALIBRATED if place.hosts > 1 else ():
        asked = _command(place, METHODS[method].strategy, CALIBRATION_STEPS, 0, LEARNING_RATE)
        crew.ask(PATIENCE_S, **asked, folder=None, scratch=str(scratch))
    return priority


def _command(place: Place, strategy: Strategy[Any], steps: int, seed: int, lr: float) -> dict[str, Any]:
    return {
        "do": "timed",
        "strategy": str(strategy),
        "steps": steps,
        "every": EVALUATE_EVERY,
        "model": place.model,
        "sleeps_s": [place.sleep_of(rank) for rank in range(place.hosts)],
        "sigma": place.sigma,
        "draws": "",
        "seed": seed,
        "lr": lr,
    }


def steady_runs(root: Path) -> Iterator[Path]:
    """Yield the run folders that earlier parts have left."""
    for file in sorted((root / "runs").glob("*/*.json")):
        if file.with_suffix("").is_dir():
            yield file.with_suffix("")
