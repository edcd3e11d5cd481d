"""Exchanges among the sessions of a simulated script, such as the agreement in ``tacit.attach``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.simulation.agenda import Agenda
from tacit.simulation.rendezvous import Call, Rendezvous

if TYPE_CHECKING:
    from tacit.simulation.scripts.workers import ScriptWorker


class SessionCollective(Call):
    """One exchange among all sessions; ``joined``: the value of each rank."""

    __slots__ = ()


class SessionCollectives(Rendezvous[SessionCollective]):
    """All exchanges of one session among the workers. They take no virtual time and are not counted."""

    noun = "call that all ranks make together"

    def __init__(self, workers: int, agenda: Agenda) -> None:
        super().__init__(workers, SessionCollective)
        self._agenda = agenda

    def gather(self, worker: ScriptWorker, what: str, own: Any) -> list[Any]:
        """Wait until all workers have made this call, and return their values in rank order."""
        call = self._enter(worker.rank, what, own, None)
        call.waiters[worker.rank] = worker.fiber
        worker.stand_by(call)
        return [call.joined[rank] for rank in self.all_ranks]

    def _start(self, call: SessionCollective) -> None:
        self._agenda.at(self._agenda.now_s, lambda: self._wake(call))

    def _wake(self, call: SessionCollective) -> None:
        for rank in sorted(call.waiters):
            call.waiters.pop(rank).resume()
