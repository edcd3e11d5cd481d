"""When a run reached a loss, if its evaluations are close enough to tell."""

from __future__ import annotations

from typing import Any, Final

from tacit.record.run import Row, Run, first_row_reaching
from tacit.record.smoothing import smoothed

_MOST: Final = 0.5
"""Largest gap between two evaluations, as a share of the steps so far."""
OBSERVED, EVALUATED = "observed", "evaluated"
"""Where the losses in the history of a run come from, in its record."""


def row_reaching(run: Run, loss: float) -> Row | None:
    """Return the first row whose loss is at most ``loss``; None if there is none, or the evaluation before is far away.

    A run that is evaluated only at its end tells nothing about when it reached a loss. Where the plan of a script has
    predicted the running mean of observed losses, the run's losses are averaged in the same way; evaluations cannot be
    compared with it.
    """
    if "window_batches" in run.predicted:
        history = _averaged(run) if run.record.get("losses") == OBSERVED else []
    else:
        history = run.history
    reached = first_row_reaching(history, loss)
    if reached is None or not reached["step"] or reached["time_s"] <= 0:
        return None
    before = [row["step"] for row in history if row["loss"] is not None and row["step"] < reached["step"]]
    gap = reached["step"] - max(before, default=0)
    is_close = gap <= _MOST * reached["step"] or reached["step"] == 1 or history is not run.history
    return reached if is_close else None


def _averaged(run: Run) -> list[dict[str, Any]]:
    """Return the history with the running mean that a plan for a script has."""
    rows = [(row["step"], row["time_s"], row["loss"]) for row in run.history if row["loss"] is not None]
    points = smoothed(rows, run.workers, run.predicted["window_batches"])
    return [{"step": round(one.step), "time_s": one.time_s, "loss": one.loss} for one in points]
