"""The step in progress of a simulated script's worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.simulation.scripts.backend import ScriptBackend
    from tacit.simulation.scripts.workers import ScriptWorker


class ScriptStep:
    """The ``StepContext`` of a simulated worker. Fibers run one at a time, so hooks need no lock."""

    def __init__(self, worker: ScriptWorker, backend: ScriptBackend) -> None:
        self._worker, self._backend = worker, backend
        self.total_weight, self.is_abandoned = 0.0, False

    def begin(self, step: int, *, in_hook: bool) -> None:
        worker, session = self._worker, self._backend.session
        worker.compute(step, self._backend.channel.trace)
        assert session is not None
        worker.world.tell(worker.rank, step, session.steps, self._backend.now_s())

    def enter_hook(self) -> None:
        """``begin`` has recorded the computation."""

    def leave_hook(self, *, keep_lock: bool = False) -> None:
        """Virtual time passes in ``begin`` alone."""

    def spend(self, what: str, numbers: int) -> None:
        self._worker.spend(what, numbers)

    def end(self) -> float:
        self.is_abandoned = False
        self._worker.watch.set(0.0)
        return self._backend.now_s()

    def abandon(self) -> None:
        if self._worker.abandon():
            self.is_abandoned = True

    def release(self) -> None:
        """There is no lock."""
