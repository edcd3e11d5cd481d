"""When a run reached a loss, if its evaluations are close enough to tell."""

from __future__ import annotations

from typing import Final

from tacit.record.run import Row, Run

_MOST: Final = 0.5
"""Largest gap between two evaluations, as a share of the steps so far."""


def row_reaching(run: Run, loss: float) -> Row | None:
    """Return the first row whose loss is at most ``loss``; None if there is none, or the evaluation before is far away.

    A run that is evaluated only at its end tells nothing about when it reached a loss.
    """
    reached = run.first_reaching(loss)
    if reached is None or not reached["step"] or reached["time_s"] <= 0:
        return None
    before = [row["step"] for row in run.history if row["loss"] is not None and row["step"] < reached["step"]]
    gap = reached["step"] - max(before, default=0)
    return reached if gap <= _MOST * reached["step"] or reached["step"] == 1 else None
