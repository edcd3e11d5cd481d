"""The simulations of a plan for a script: one run per candidate and seed, which ends at the target."""

from __future__ import annotations

import io
import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Constant
from tacit.compare.tasks import Task, Work
from tacit.errors import RunError, SpeedBias
from tacit.planning.scripts.cache import ScriptCurve, ScriptCurves, key_of, rounded
from tacit.planning.scripts.losses import BUDGET, LossFollower
from tacit.planning.work import PlanTask, is_timed_with_gradients
from tacit.profiles.profile import Profile
from tacit.record.run import Run, Tally
from tacit.record.smoothing import LEAST
from tacit.record.versions import versions
from tacit.simulation.evaluation import Progress
from tacit.simulation.scripts.run import compiled, simulate_compiled
from tacit.simulation.scripts.world import Script

OUT_OF_TIME: Final = "stopped: the budget was spent"
"""Status of a run that was not complete when the budget ended."""


@dataclass(frozen=True)
class ScriptPlanWork(Work):
    """What all runs of a script's plan share. until_s: by ``time.time``, when runs end for lack of budget."""

    path: str
    arguments: tuple[str, ...]
    profile: Profile
    until_loss: float | None
    until_s: float
    cache: str | None = None
    threads: int = 1

    @cached_property
    def script(self) -> Script:
        """The script, read and compiled in this process."""
        return compiled(self.path, self.arguments)

    @cached_property
    def _curves(self) -> ScriptCurves:
        return ScriptCurves(self.cache)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("script", "_curves")}

    def configuration(self, task: Task) -> dict[str, Any]:
        assert isinstance(task, PlanTask)
        return {"strategy": task.label, "ranks": list(task.candidate.ranks), "seed": task.seed}

    def make(self, task: Task, progress: Progress | None) -> Run:
        assert isinstance(task, PlanTask) and task.strategy is not None
        is_timed = is_timed_with_gradients(task.strategy)
        cluster = self._cluster(task, is_timed=is_timed)
        table = cluster.table() if is_timed else None
        key, described = key_of(
            self.script, task.label, cluster.workers, task.seed, table, LEAST * self.profile.workers
        )
        curve = self._curves.get(key, self.until_loss, task.steps)
        if curve is not None:
            return self._run(task, curve, 0.0)
        begun_s = time.monotonic()
        curve = self._simulated(task, cluster, progress, is_timed=is_timed)
        self._curves.put(key, described, curve)
        return self._run(task, curve, time.monotonic() - begun_s)

    def _cluster(self, task: PlanTask, *, is_timed: bool) -> Cluster:
        ranks = task.candidate.ranks
        if is_timed:
            return self.profile.of_ranks(ranks).cluster()
        return Cluster(workers=len(ranks), compute=Constant(mean_s=1.0))

    def _simulated(self, task: PlanTask, cluster: Cluster, progress: Progress | None, *, is_timed: bool) -> ScriptCurve:
        strategy = task.strategy
        assert strategy is not None
        follower = LossFollower(
            cluster.workers,
            LEAST * self.profile.workers,
            in_step=not strategy.depends_on_time,
            has_server=strategy.has_server,
            until_loss=self.until_loss,
            most_steps=task.steps,
            until_s=self.until_s,
        )
        status = "finished"
        try:
            with quiet_script():
                run = simulate_compiled(
                    self.script,
                    cluster=cluster,
                    strategy=strategy,
                    seed=task.seed,
                    measured=False,
                    progress=progress,
                    follower=follower,
                )
        except RunError as error:
            if error.run is None:
                raise
            run, status = error.run, f"failed: {error}"
        if follower.ended_by == BUDGET:
            status = OUT_OF_TIME
        tally = Tally(run.trace)
        return ScriptCurve(
            steps=tuple(follower.steps),
            losses=rounded(follower.losses),
            times_s=rounded(follower.times_s) if is_timed else (),
            bytes_sent=tuple(tally.at(time_s)["bytes_sent"] for time_s in follower.times_s) if is_timed else (),
            done=follower.done,
            status=status,
            is_whole=not follower.ended_by and status == "finished",
            files=run.record.get("script_modules", {}),
        )

    def failed(self, task: Task, status: str) -> Run:
        assert isinstance(task, PlanTask)
        return Run(
            workload=Path(self.path).name,
            strategy=task.label,
            workers=len(task.candidate.ranks),
            steps=task.steps,
            seed=task.seed,
            status=status,
            config=self.configuration(task),
            record={**versions(), "world": "simulated"},
        )

    def _run(self, task: PlanTask, curve: ScriptCurve, wall_s: float) -> Run:
        """Return a run with the losses of ``curve``, and with times if they were simulated."""
        run = self.failed(task, curve.status)
        times_s = curve.times_s or (math.nan,) * len(curve.steps)
        sent = curve.bytes_sent or (None,) * len(curve.steps)
        run.history = [
            {"time_s": time_s, "step": step, "loss": loss, "metric": None, "bytes_sent": size}
            for time_s, step, loss, size in zip(times_s, curve.steps, curve.losses, sent, strict=True)
        ]
        run.record = {**run.record, "done": curve.done, "wall_s": wall_s}
        return run


@contextmanager
def quiet_script() -> Iterator[None]:
    """Drop what a script prints, and tacit's warnings about its loop, which each run would repeat."""
    logger = logging.getLogger("tacit")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", SpeedBias)
            yield
    finally:
        logger.setLevel(before)
