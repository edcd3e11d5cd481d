"""A loss curve by step, and the time at which a run on a given cluster reaches a loss of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import require
from tacit.record.run import Run
from tacit.record.trace import COMPUTE


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Loss and metric of the reported model by step, of a strategy whose models do not depend on time.

    ``steps``, ``loss`` and ``metric`` have one entry per evaluation. A number that was not measured is None.
    ``status`` is that of the run: "finished", or "failed: …" with the evaluations before the error.
    """

    strategy: str
    workers: int
    steps: tuple[int, ...]
    loss: tuple[float | None, ...]
    metric: tuple[float | None, ...]
    status: str = "finished"

    def first_step_reaching(self, loss: float) -> int | None:
        """Return the first evaluated step whose loss is at most ``loss``, or None."""
        found = zip(self.steps, self.loss, strict=True)
        return next((step for step, value in found if value is not None and value <= loss), None)


def time_to_loss(curve: Curve, timing_run: Run, loss: float) -> float | None:
    """Return the seconds after which ``timing_run`` has reached ``loss`` of ``curve``, or None if the curve never does.

    This is the time at which all workers of ``timing_run`` have completed the first step of the curve with this loss,
    its round included. timing_run: a run of the same strategy with as many workers, on any cluster, usually with
    ``timing_only=True``. Where rounds or sizes of messages depend on gradients (periods that follow the loss or the
    variance, Top-k), a run that is not timing-only has the true times.
    """
    require(
        (timing_run.strategy, timing_run.workers) == (curve.strategy, curve.workers),
        f"timing_run is of {timing_run.strategy} with {timing_run.workers} workers, and the curve of {curve.strategy} "
        f"with {curve.workers}; simulate the times of the same strategy and number of workers.",
    )
    step = curve.first_step_reaching(loss)
    if step is None or step == 0:
        return None if step is None else 0.0
    require(
        step <= timing_run.steps,
        f"timing_run has steps={timing_run.steps}, and the curve reaches loss={loss:g} at step {step}; "
        f"simulate at least {step} steps.",
    )
    return _completed_s(timing_run, step)


def _completed_s(run: Run, step: int) -> float:
    """Return when all workers have completed ``step`` and its hooks: when their next step starts, or the run ends."""
    if step == run.steps:
        return float(run.history[-1]["time_s"])
    ranks, steps, starts_s, ends_s = run.trace.unordered(("rank", "step", "start_s", "time_s"), COMPUTE)
    is_step, is_next = steps == step, steps == step + 1
    next_s = dict(zip(ranks[is_next].tolist(), starts_s[is_next].tolist(), strict=True))
    ended_s = dict(zip(ranks[is_step].tolist(), ends_s[is_step].tolist(), strict=True))
    return float(np.max([next_s.get(rank, end_s) for rank, end_s in ended_s.items()]))
