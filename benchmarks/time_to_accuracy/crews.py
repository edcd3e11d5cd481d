"""The processes of a place: one crew of ranks at a time, of the environment that the next run needs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from benchmarks.fidelity.recording import free_port, hosts_of
from benchmarks.peers import Crew, Failed
from benchmarks.time_to_accuracy.places import Spot
from benchmarks.time_to_accuracy.ranks.common import Rule
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import MOMENTUM, write_data, write_start

PEERS: Final = {"accelerate": "accelerate==1.15.0", "torchft": "torchft==0.2.0", "hivemind": "hivemind==1.1.12"}
PATIENCE_S: Final = 90.0
_LOG_LINES: Final = 15
_SHARED: Final = Path("/dev/shm")


class Crews:
    """Starts and ends crews; a context manager."""

    def __init__(self, setting: Setting, spot: Spot) -> None:
        self._setting, self._spot = setting, spot
        self._stack = contextlib.ExitStack()
        self._open: tuple[str, int] | None = None
        self._crew: Crew | None = None
        self.priority = "usual"

    def __enter__(self) -> Crews:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the crew that is open."""
        self._open, self._crew = None, None
        self._stack.close()

    def _of(self, name: str, workers: int) -> Crew:
        if self._open != (name, workers):
            self.end()
            self._crew = self._stack.enter_context(self._started(name, workers))
            self._open = name, workers
            self.priority = "usual"
            if not self._setting.is_quick:
                self.priority = self._crew.ask(PATIENCE_S, do="prepare")[0]["priority"]
        assert self._crew is not None
        return self._crew

    @contextlib.contextmanager
    def _started(self, name: str, workers: int) -> Iterator[Crew]:
        place = self._spot.place(self._setting.task, workers, self._setting.is_quick)
        environments = self._setting.environments
        environments.mkdir(parents=True, exist_ok=True)
        with hosts_of(place) as hosts:
            port = free_port() if place.is_quick else 29500
            module = f"benchmarks.time_to_accuracy.ranks.{name}_rank"
            crew = Crew(name, hosts, environments, port, module)
            try:
                yield crew
            finally:
                crew.close()

    def run(self, crew: str, workers: int, seed: int, rule: Rule, patience_s: float, **order: Any) -> list[Any]:
        """Let all ranks of a crew train; return what each of them noted. A failure ends the crew.

        order: method, value, strategy, lr and folder.
        """
        setting, task = self._setting, self._setting.task
        files = setting.folder / "data"
        write_data(task, setting.data, files)
        start = write_start(task, setting.data, files, workers, seed)
        place = self._spot.place(task, workers, setting.is_quick)
        described = {
            "name": task.name,
            "folder": str(files.resolve()),
            "start": start,
            "sleeps_s": [place.sleep_of(rank) for rank in range(workers)],
        }
        with tempfile.TemporaryDirectory(dir=_SHARED if _SHARED.is_dir() else None) as scratch:
            try:
                self._of(crew, workers).ask(
                    patience_s,
                    do="train",
                    task=described,
                    rule=asdict(rule),
                    scratch=scratch,
                    seed=seed,
                    momentum=MOMENTUM,
                    **order,
                )
            except Failed:
                log = setting.environments / f"{crew}.log"
                print(*log.read_text(errors="replace").splitlines()[-_LOG_LINES:], sep="\n", file=sys.stderr)
                self.end()
                raise
            return _noted(Path(scratch), workers)

    def calibrate(self, strategy: str, steps: int, seed: int, folder: Path | None) -> None:
        """Run a strategy of tacit for a few steps; keep its run in ``folder``."""
        rule = Rule(steps=steps, every=10 * steps)
        target = None if folder is None else str(folder.resolve())
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
        order = {"method": "tacit", "value": None, "strategy": strategy, "lr": 0.01, "folder": target}
        self.run("tacit", self._setting.workers, seed, rule, PATIENCE_S, **order)


def _noted(scratch: Path, workers: int) -> list[Any]:
    return [torch.load(scratch / f"{rank}.pt") for rank in range(workers)]


def stamp() -> dict[str, Any]:
    """Return date and load, for a row."""
    return {"date": time.strftime("%Y-%m-%d %H:%M"), "load": round(os.getloadavg()[0], 1)}
