"""A step of a simulated worker that takes virtual time: it ends, or the strategy abandons it."""

from __future__ import annotations

from tacit.record.trace import Trace
from tacit.simulation.endpoints import Endpoint


class StepInProgress:
    """A step that is being computed. It ends, or it is abandoned."""

    __slots__ = ("_is_over", "_start_s", "_trace", "_worker", "is_abandoned", "number")

    def __init__(self, worker: Endpoint, start_s: float, number: int, trace: Trace) -> None:
        self._worker, self._start_s, self.number, self._trace = worker, start_s, number, trace
        self.is_abandoned = self._is_over = False

    def end(self) -> None:
        """End the step and resume its worker."""
        if not self._is_over and not self._worker.is_lost:
            self.close()
            self._worker.fiber.resume()

    def close(self) -> None:
        """End the step without resuming its worker."""
        self._is_over = True
        if self.is_abandoned:
            self._record()

    def abandon(self) -> None:
        """Drop the gradient: now, or at the end of the step, depending on ``Cluster.cancel``."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        world = self._worker.world
        if world.cluster.cancel == "instant":
            self._is_over = True
            self._record()
            world.agenda.at(world.agenda.now_s, self._worker.fiber.resume)

    def _record(self) -> None:
        now_s, rank = self._worker.world.agenda.now_s, self._worker.rank
        self._trace.cancelled(rank, self.number, self._start_s, now_s)
