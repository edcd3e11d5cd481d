"""What a follower of a simulated script sees: the steps of its workers, with their losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class StepOfScript(NamedTuple):
    """One completed step of a worker. ``loss``: of its mini-batch; None: the script did not observe it."""

    rank: int
    step: int
    time_s: float
    loss: float | None
    weight: float
    updates: int  # of the model that the worker holds: its steps, or in server strategies the server's updates


Follower = Callable[[StepOfScript], bool]
"""A callback after each step of the first session; it returns whether the simulation ends here."""
