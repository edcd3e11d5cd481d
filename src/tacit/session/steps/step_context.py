"""The interface between session and backend during one step."""

from __future__ import annotations

from typing import Protocol


class StepContext(Protocol):
    """The step in progress of one worker. The session reports its boundaries, the backend records them.

    Order of calls: ``begin``, hooks before the update, the update, hooks after it, ``end``. A hook runs between
    ``enter_hook`` and ``leave_hook``; hooks outside of steps do so as well.
    """

    total_weight: float  # sum of the weights in the latest mean that this worker took part in
    is_abandoned: bool  # whether a handler has dropped this step's gradient

    def begin(self, step: int, *, in_hook: bool) -> None:
        """Begin the end of step ``step`` (from 1), whose gradient is computed; ``in_hook``: enter a hook as well.

        Charge the compute time where time is virtual. Raise the error that has ended the run, if there is one.
        """

    def enter_hook(self) -> None:
        """Take the hook lock. The first hook of a step ends its computation, which the trace records."""

    def leave_hook(self, *, keep_lock: bool = False) -> None:
        """Release the hook lock; with ``keep_lock`` hold it until ``end``, so that no handler runs before that."""

    def spend(self, what: str, numbers: int) -> None:
        """Account for work of the hook that runs: see ``Worker.spend``."""

    def end(self) -> float:
        """End the step and the hook that is still entered, and return the time. Prepare the next step."""

    def abandon(self) -> None:
        """Drop the gradient that is being computed, if there is one. Handlers call it."""

    def release(self) -> None:
        """Release the hook lock if a step that raised still holds it."""
