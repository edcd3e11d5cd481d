"""The real runs of the plan benchmark: each is kept in a folder with the losses of its models, and none is made twice."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.cells import CALIBRATED, CALIBRATION_STEPS, METHODS
from benchmarks.fidelity.recording import PATIENCE_S, crew_at
from benchmarks.fidelity.workloads import LEARNING_RATE
from benchmarks.papers.common import target
from benchmarks.peers import Crew, Failed
from benchmarks.plan.places import EVALUATE_EVERY, Place
from tacit.registry import parse
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

    def table(self) -> dict[str, Any]:
        """Return the run as a table of missing.json."""
        return {"place": asdict(self.place), "strategy": str(self.strategy), "steps": self.steps, "seed": self.seed}

    @classmethod
    def of(cls, table: dict[str, Any], root: Path) -> RealRun:
        """Return the run of a table of missing.json."""
        strategy = parse(table["strategy"], "strategies")
        return cls(Place(**table["place"]), strategy, table["steps"], root, table["seed"])


def reached(measured: dict[str, Any], loss: float) -> tuple[int, float] | None:
    """Return the step and the seconds at which the kept models first had at most ``loss``; None: never."""
    return next(((step, time_s) for step, time_s, value in measured["rows"] if value <= loss), None)


@dataclass
class Recorder:
    """Makes the runs that are missing."""

    ends_s: float = math.inf  # on the monotonic clock; no run begins later
    failures: dict[str, str] = field(default_factory=dict)  # by run, with the reason

    def record(self, runs: Iterable[RealRun]) -> None:
        """Make the missing runs, those of one place one after the other. Of two lengths of a run, make the longer."""
        longest: dict[Path, RealRun] = {}
        for run in sorted(runs, key=lambda run: run.steps):
            if run.measured() is None:
                longest[run.folder] = run
        by_place: dict[Place, list[RealRun]] = {}
        for run in longest.values():
            by_place.setdefault(run.place, []).append(run)
        for place, missing in by_place.items():
            for _ in range(_ATTEMPTS):
                with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(Failed):
                    self._record_at(place, [run for run in missing if run.measured() is None], Path(scratch))

    def _record_at(self, place: Place, runs: list[RealRun], scratch: Path) -> None:
        if not runs or time.monotonic() >= self.ends_s:
            return
        with crew_at(place, scratch, "plan") as crew:
            priority = prepared(crew, place, scratch)
            for run in runs:
                if time.monotonic() < self.ends_s:
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
            "run": run.table(),
            "steps": run.steps,
            "priority": priority,
            "load": round(load, 1),
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "seconds": round(time.perf_counter() - begun_s, 1),
            **answers[0],
        }
        run.file.write_text(json.dumps(noted) + "\n")
        print(f"  {run}: {run.steps} steps, {noted['seconds']} s, load {load:.1f}", flush=True)


def record(runs: Iterable[RealRun], chosen: argparse.Namespace) -> dict[str, str]:
    """Make the missing runs and return the failures; with --no-runs, only note in FOLDER which runs are missing."""
    recorder = Recorder(chosen.ends_s)
    if not chosen.no_runs:
        recorder.record(runs)
        return recorder.failures
    file = _missing_file(chosen.folder)
    noted = json.loads(file.read_text()) if file.is_file() else []
    noted += [run.table() for run in runs if run.measured() is None and run.table() not in noted]
    file.write_text(json.dumps(noted, indent=1) + "\n")
    return {}


def record_missing(chosen: argparse.Namespace) -> bool:
    """Make the runs that an earlier call with --no-runs has noted; return whether all of them are made now."""
    file = _missing_file(chosen.folder)
    runs = [RealRun.of(table, chosen.folder) for table in json.loads(file.read_text())] if file.is_file() else []
    Recorder(chosen.ends_s).record(runs)
    left = [run.table() for run in runs if run.measured() is None]
    file.write_text(json.dumps(left, indent=1) + "\n")
    print(f"  {len(runs) - len(left)} of {len(runs)} missing runs are made now", flush=True)
    return not left


def _missing_file(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    return root / "missing.json"


def prepared(crew: Crew, place: Place, scratch: Path) -> str:
    """Set the priority of all ranks and return it; run each kind of round once, so that memory is allocated."""
    if place.is_quick:
        return "usual"
    priority: str = crew.ask(PATIENCE_S, do="prepare", pinned=not place.sleep_s)[0]["priority"]
    for method in CALIBRATED if place.hosts > 1 else ():
        asked = _command(place, METHODS[method].strategy, CALIBRATION_STEPS, 0, LEARNING_RATE)
        crew.ask(PATIENCE_S, **asked, folder=None, scratch=str(scratch))
    return priority


def not_run(failures: Mapping[str, str], missing: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a claim that fails for each run that failed, and one for cells without a measured time."""
    failed = [target("runs", "everything runs to its end", f"{run}: {why}", False) for run, why in failures.items()]
    if missing:
        failed.append(target("cells", "all cells have a measured time", f"missing: {'; '.join(missing)}", False))
    return failed


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
        "momentum": place.momentum,
    }
