"""The members of a simulated run, by generation, as on real processes.

A worker that is lost changes the members, and so does one that waits to be let in. Each member that notices comes to
the door: in a collective or ``receive`` that waits for a lost worker, or at the end of a step. When all members that
are left stand there, they decide the next generation, and ``Strategy.regrouped`` runs on each. Only members decide: a
worker that returns or joins has no model, waits, and gets everything from a member (``joiners``).

Members let joiners in at the end of the step whose round announced them. Where workers keep models apart there are no
common rounds, and a joiner brings all members to the door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tacit.cluster.cluster import Cluster
from tacit.core.strategy import Strategy
from tacit.errors import MembersChanged, PeerLost
from tacit.simulation.membership.joiners import Everything, everything_of
from tacit.simulation.rendezvous import Group

if TYPE_CHECKING:
    from tacit.simulation.links import Price
    from tacit.simulation.workers import SimulatedWorker
    from tacit.simulation.world import World


@dataclass
class _Arrival:
    """A member at the door."""

    worker: SimulatedWorker
    since_s: float
    lets_in: bool  # whether a joiner can start from its state


class Members:
    """The members of the current generation, and who waits at the door."""

    def __init__(self, world: World, cluster: Cluster, strategy: Strategy[Any], ranks: Sequence[int]) -> None:
        self._world, self._strategy, self._fewest = world, strategy, cluster.fewest_workers
        self.ranks: Group = tuple(ranks)
        self.generation = 1
        self.is_changing = False  # whether a member was lost, or a joiner interrupts, since the last decision
        self._door: dict[int, _Arrival] = {}  # by rank
        self._joiners: dict[int, float] = {}  # by rank: since when each waits
        self._attempt = 0  # to decide; a loss makes the one before void
        self._former = set(ranks)  # all that have ever been members

    @property
    def announces_joiners(self) -> bool:
        """Whether the members let joiners in at the end of a step with a round that begins now."""
        return bool(self._joiners) and not self._strategy.keeps_models_apart

    def opens_for(self, worker: SimulatedWorker) -> bool:
        """Whether ``worker`` goes to the door at the end of a step."""
        return worker.is_door_due or (self.is_changing and self._strategy.keeps_models_apart)

    def left(self) -> list[int]:
        """Return the members that are not lost."""
        return [rank for rank in self.ranks if self._world.lost_at(rank) is None]

    # Changes.

    def lose(self, rank: int) -> None:
        """Note that a member was lost; who waits for it is woken afterwards."""
        if rank not in self.ranks:
            return
        self.is_changing = True
        self._door.pop(rank, None)
        self._attempt += 1
        if not self.left():
            raise self._too_few("the run")
        self._decide_if_all_are_here()

    def wait(self, rank: int) -> None:
        """Let a worker that returned or joins wait at the door."""
        self._joiners[rank] = self._world.agenda.now_s
        if self._strategy.keeps_models_apart:
            self.is_changing = True
            self._world.interrupt()

    def forget_joiner(self, rank: int) -> bool:
        """Note that a worker at the door is lost again; return whether it was one."""
        return self._joiners.pop(rank, None) is not None

    # The door.

    def regroup(self, worker: SimulatedWorker, waiting_for: object, *, lets_in: bool) -> None:
        """Wait until the next generation is decided; then let the strategy adapt its state."""
        self._stand_at_door(worker, waiting_for, lets_in=lets_in)
        self.adapt(worker)

    def adapt(self, worker: SimulatedWorker) -> None:
        """Let the strategy adapt its state to the members, anew where they change meanwhile."""
        worker.is_regrouping, is_adapted = True, False
        try:
            while not is_adapted:
                try:
                    self._strategy.regrouped(worker, worker.state, self.ranks)
                    is_adapted = True
                except MembersChanged:
                    self._stand_at_door(worker, "the next generation of members", lets_in=False)
        finally:
            worker.is_regrouping = False

    def _stand_at_door(self, worker: SimulatedWorker, waiting_for: object, *, lets_in: bool) -> None:
        world, now_s = self._world, self._world.agenda.now_s
        if len(self.left()) < self._fewest:
            raise self._too_few(waiting_for)
        self._door[worker.rank] = _Arrival(worker, now_s, lets_in)
        self._decide_if_all_are_here()
        worker.block("the next generation of members")
        world.trace.wait(worker.rank, now_s, world.agenda.now_s, "regroup")

    def _decide_if_all_are_here(self) -> None:
        left = self.left()
        if not left or not set(left) <= self._door.keys():
            return
        if len(left) < self._fewest:
            failure = self._too_few("the next generation of members")
            for rank in sorted(self._door):
                self._door.pop(rank).worker.fiber.throw(failure)
            return
        self._attempt += 1
        joiners = self._admitted(left)
        decided_s = self._world.awake_from(left) + self._world.cluster.regroup_s  # a paused member answers later
        everything = None
        if joiners:
            everything = everything_of(self._world.workers[self._donor(left)])
            price = everything.price(joiners)
            self._world.agenda.at(decided_s, partial(self._transfer, self._attempt, everything, joiners, price))
            decided_s += max(price.seconds)
        self._world.agenda.at(decided_s, partial(self._decide, self._attempt, left, joiners, everything))

    def _transfer(self, attempt: int, everything: Everything, joiners: list[int], price: Price) -> None:
        if attempt == self._attempt:
            everything.record_transfer(joiners, price)

    def _admitted(self, left: Sequence[int]) -> list[int]:
        if self._strategy.keeps_models_apart:
            return sorted(self._joiners)
        return sorted(self._joiners) if all(self._door[rank].lets_in for rank in left) else []

    def _donor(self, left: Sequence[int]) -> int:
        """Return the member that has completed most steps, the lowest rank among equals."""
        return max(left, key=lambda rank: (self._world.workers[rank].step, -rank))

    def _decide(self, attempt: int, left: list[int], joiners: list[int], everything: Everything | None) -> None:
        """Begin the next generation, and let its members continue."""
        if attempt != self._attempt:
            return
        world = self._world
        admitted = [rank for rank in joiners if rank in self._joiners]
        self.generation += 1
        self.ranks = tuple(sorted([*left, *admitted]))
        late = [rank for rank in self._joiners if rank not in admitted]
        self.is_changing = bool(late) and self._strategy.keeps_models_apart  # who came after all stood at the door
        self._former.update(admitted)
        arrivals, self._door = [self._door[rank] for rank in left], {}
        for rank in self.ranks:
            world.trace.note(rank, world.agenda.now_s, "members", len(self.ranks))
        for rank in admitted:
            assert everything is not None
            since_s = self._joiners.pop(rank)
            world.record_wait_at_door(rank, since_s)
            world.let_in(rank, everything)
        for arrival in arrivals:
            arrival.worker.begin_generation()
            arrival.worker.fiber.resume()
        for rank in admitted:
            if not world.workers[rank].is_lost:
                world.workers[rank].fiber.resume()

    def _too_few(self, waiting_for: object) -> PeerLost:
        """Return the error of a run with too few members, which names all that are lost."""
        lost_at = {rank: at_s for rank in sorted(self._former) if (at_s := self._world.lost_at(rank)) is not None}
        need = f"needs at least {self._fewest} workers (min_workers), of which {len(self.left())} are left"
        way_out = "remove a fault, or lower min_workers."
        return PeerLost(min(lost_at), max(lost_at.values()), str(waiting_for), way_out, need=need, ranks=lost_at)
