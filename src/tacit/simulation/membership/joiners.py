"""What a joiner gets from a member: model, optimizer, buffers, strategy state, shared random stream and counters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tacit.session.model.extra_state import PendingWithExtraState
from tacit.simulation.engine.moments import NetworkWithMoments
from tacit.simulation.network import SimulatedPending

if TYPE_CHECKING:
    from numpy.random import Generator

    from tacit.simulation.links import Price
    from tacit.simulation.workers import SimulatedWorker


@dataclass(frozen=True)
class Everything:
    """Everything that ``donor`` gives to joiners, at the moment at which it stood at the door."""

    donor: SimulatedWorker
    step: int
    shared_random: Generator
    size_bytes: int

    def price(self, joiners: Sequence[int]) -> Price:
        """Return time and bytes of sending everything to ``joiners``."""
        return self.donor.world.fabric.price_broadcast(self._group(joiners), self.donor.rank, self.size_bytes)

    def record_transfer(self, joiners: Sequence[int], price: Price) -> None:
        """Add the transfer, which begins now, to the trace. Its bytes are counted."""
        world, now_s = self.donor.world, self.donor.world.agenda.now_s
        ends_s = [now_s + seconds for seconds in price.seconds]
        rounds = world.collectives.rounds
        world.trace.exchanges(self._group(joiners), now_s, ends_s, "join", rounds, price.sent_bytes)

    def _group(self, joiners: Sequence[int]) -> tuple[int, ...]:
        return (self.donor.rank, *joiners)

    def give(self, joiner: SimulatedWorker) -> None:
        """Let ``joiner`` start where the donor is."""
        donor, world = self.donor, joiner.world
        world.engine.copy_worker(donor.rank, joiner.rank)
        joiner.step = self.step
        joiner.state, joiner.has_joined = copied(donor.state, joiner), True
        world.set_shared_stream(joiner.rank, copy.deepcopy(self.shared_random))
        joiner.continue_counters_of(donor)


def everything_of(donor: SimulatedWorker) -> Everything:
    """Return what ``donor``, which stands at the door, gives."""
    world = donor.world
    size_bytes = world.engine.size_bytes(donor.rank) + _size_bytes(donor.state)
    return Everything(donor, donor.step, copy.deepcopy(donor.shared_random), size_bytes)


def copied(value: Any, joiner: SimulatedWorker) -> Any:
    """Return a copy of a strategy's state for ``joiner``; rounds in progress then have the donor's result."""
    if isinstance(value, SimulatedPending):
        return value.copied(joiner.plain_network)
    if isinstance(value, PendingWithExtraState):
        assert isinstance(joiner.network, NetworkWithMoments)
        return value.copied(lambda pending: copied(pending, joiner), joiner.network)
    if isinstance(value, Tensor):
        return value.detach().clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(new, field.name, copied(getattr(value, field.name), joiner))
        return new
    if isinstance(value, dict):
        return {key: copied(inner, joiner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(copied(inner, joiner) for inner in value)
    if isinstance(value, list | tuple):
        return type(value)(copied(inner, joiner) for inner in value)
    return copy.deepcopy(value)


def _size_bytes(value: Any) -> int:
    """Return the size of all tensors in a strategy's state."""
    if isinstance(value, Tensor):
        return value.nbytes
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(_size_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return sum(map(_size_bytes, value.values()))
    return sum(map(_size_bytes, value)) if isinstance(value, list | tuple) else 0
