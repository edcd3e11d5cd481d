"""One process of a pilot: ``python -m tacit.planning.pilots.worker JOB.json``, started by torchrun's agent."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tacit.core.strategy import Strategy
from tacit.planning.pilots.job import job_of, write_rows
from tacit.registry.tables import parsed
from tacit.runtime.launcher.reports import report_to_launcher
from tacit.runtime.train import train
from tacit.session import rank
from tacit.session.probing import Probe, ProbeComplete, ProbeEnd, set_probe


class Pilot(Probe):
    """Replaces the strategy of a script, and ends the script after some steps or seconds; losses are kept."""

    keeps_losses = True

    def __init__(self, strategy: Strategy[Any], steps: int, limit_s: float) -> None:
        super().__init__(strategy)
        self._steps, self._limit_s = steps, limit_s
        self.on_end = _stop_alarm

    def begin(self, own: Strategy[Any], steps: int | None) -> Strategy[Any]:
        signal.signal(signal.SIGALRM, _end)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        return super().begin(own, steps)

    def end_step(self, step: int) -> None:
        if step >= self._steps:
            raise ProbeComplete(f"the pilot of {self._steps} steps is complete")


def main(path: str) -> None:
    """Run the worker's part of the job in the file ``path``; rank 0 writes the losses."""
    job = job_of(Path(path))
    torch.set_num_threads(job["threads"])
    strategy = parsed("strategy", job["strategy"], "strategies")
    if job["script"] is None:
        workload, settings = parsed("workload", job["workload"], "workloads"), dict(job["settings"])
        if job["schedule"] is not None:
            settings["schedule"] = parsed("schedule", job["schedule"], "schedules")
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, job["limit_s"])
        try:
            history = train(workload, strategy, steps=job["steps"], **settings).history
        except KeyboardInterrupt as error:
            run = getattr(error, "run", None)
            history = [] if run is None else run.history
        _stop_alarm()
    else:
        pilot = Pilot(strategy, job["steps"], job["limit_s"])
        set_probe(pilot)
        sys.argv = [job["script"], *job["arguments"]]
        sys.path.insert(0, str(Path(job["script"]).parent))
        with contextlib.suppress(ProbeEnd), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            runpy.run_path(job["script"], run_name="__main__")
        history = [] if pilot.run is None else pilot.run.history
    if rank() == 0 and history:
        write_rows(job["out"], history)


def _end(number: int, frame: FrameType | None) -> None:
    raise ProbeComplete("the time of the pilot is over")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.0)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:
        report_to_launcher(f"{type(error).__name__}: {error}", type(error).__name__, 1)
        raise SystemExit(1) from error
