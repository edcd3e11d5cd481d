"""The clocks of all workers, their work and their collectives, without fibers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np

from tacit.cluster.costs import cost_s
from tacit.errors import MisplacedCall
from tacit.record.trace import HOOK
from tacit.simulation.links import Price
from tacit.simulation.lockstep.columns import Batches, Seconds, Times
from tacit.simulation.network import SimulatedNetwork
from tacit.simulation.workers import SimulatedWorker
from tacit.simulation.world import World


class Lockstep(ABC):
    """A loop over the steps of all workers."""

    announced: ClassVar[str]  # what the strategy has declared of itself

    def __init__(self, world: World) -> None:
        self._world, self._trace, self._evaluator = world, world.trace, world.evaluator
        self._workers = world.cluster.workers
        self._now_s: Seconds = np.zeros(self._workers)  # by rank
        self._times = Times([world.compute_times(rank) for rank in range(self._workers)])
        self._batches = Batches(world.samplers, self._workers, world.steps)

    @property
    def world(self) -> World:
        return self._world

    @abstractmethod
    def run(self) -> None:
        """Run all steps and hooks."""

    def spend(self, what: str, numbers: int) -> None:
        """Let the time of work in a hook pass on all workers."""
        costs = self._world.cluster.costs
        if costs and (seconds := cost_s(costs, what, numbers)) > 0:
            start_s, self._now_s = self._now_s, self._now_s + seconds
            ranks = np.arange(self._workers)
            self._trace.record_many(HOOK, ranks, self._now_s, start_s, label=what, value=float(numbers))
            self._world.agenda.now_s = float(self._now_s[0])

    def _exchange(self, kind: str, price: Price) -> None:
        """Let the time of a collective of all workers pass, which begins when the last one has joined."""
        trace, collectives = self._trace, self._world.collectives
        index = collectives.rounds = collectives.rounds + 1
        joined_s, begun_s = self._now_s, float(self._now_s.max())
        ends_s = begun_s + np.array(price.seconds)
        trace.exchanges(collectives.all_ranks, begun_s, ends_s.tolist(), kind, index, price.sent_bytes)
        late = np.flatnonzero(joined_s < begun_s).tolist()
        trace.waits(late, joined_s[late].tolist(), begun_s, kind, index)
        self._now_s = ends_s
        self._world.agenda.now_s = float(ends_s[0])


class LockstepWorker(SimulatedWorker):
    """A worker that hooks refer to. collectives: those of the network that its hooks may use, by name."""

    def __init__(self, lockstep: Lockstep, rank: int, **collectives: Callable[..., Any]) -> None:
        super().__init__(lockstep.world, rank)
        self._lockstep = lockstep
        self.network = cast(SimulatedNetwork, _Network(lockstep, rank, collectives))

    @cached_property
    def random(self) -> np.random.Generator:
        return super().random

    @cached_property
    def shared_random(self) -> np.random.Generator:
        return super().shared_random

    def spend(self, what: str, numbers: int) -> None:
        self._lockstep.spend(what, numbers)

    def block(self, what: object) -> None:
        raise MisplacedCall(
            f"{self.world.strategy}: {self._lockstep.announced}, but a hook waits for {what}; return False."
        )

    def begin(self, step: int) -> None:
        """Refer to the worker after its step number ``step``."""
        self.step, self._current = step, max(0, step - 1)

    def begin_hook(self, step: int) -> None:
        """Refer to the worker in the hook before its step number ``step``, from 0."""
        self.step = self._current = step


class _Network:
    """The network of a worker."""

    def __init__(self, lockstep: Lockstep, rank: int, collectives: dict[str, Callable[..., Any]]) -> None:
        self._lockstep, self.rank, self.size = lockstep, rank, lockstep.world.cluster.workers
        self.__dict__.update(collectives)

    def __getattr__(self, name: str) -> Any:
        raise MisplacedCall(f"{self._lockstep.announced}, but a hook calls network.{name}; let it return False.")
