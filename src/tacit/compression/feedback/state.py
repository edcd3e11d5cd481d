"""The state of a feedback on one rank, and the helpers that create and merge states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed, Memory
from tacit.compression.kernels.matrix_rows import matrix_of


@dataclass
class FeedbackState:
    """What one rank remembers between exchanges: tensors and numbers, checkpointable."""

    rank: int
    weights: list[float]  # by rank: the weight of its latest update with a body
    own: dict[str, Tensor] = field(default_factory=dict)  # differs from rank to rank
    shared: dict[str, Tensor] = field(default_factory=dict)  # equal on all ranks
    warm: Memory = field(default_factory=dict)  # the compressor's memory
    master: Memory = field(default_factory=dict)  # the memory of the master's compressor
    master_bytes: int = 0  # size of the master's broadcast in the latest exchange
    members: list[int] = field(default_factory=list)  # ranks of the run, by place; empty: all. ``rank`` is a place
    sent: tuple[Compressed, float] | None = None  # the message of an exchange in progress, and its factor

    @property
    def ranks(self) -> list[int]:
        """The ranks of the run that exchange, by place."""
        return self.members or list(range(len(self.weights)))

    @property
    def has_joined(self) -> bool:
        """Whether this rank's vector is in the mean: it has sent one, and its data has not ended."""
        return self.weights[self.rank] != 0.0


def zeros(like: Tensor, *lead: int) -> Tensor:
    """Return float64 zeros: a sum over a whole run would drift in float32."""
    return torch.zeros(*lead, *like.shape, dtype=torch.float64, device=like.device)


def own_matrix(states: Sequence[FeedbackState], name: str) -> Tensor:
    """Return a matrix with a tensor of every rank as its rows, which become views of it: one operation changes all."""
    rows = [state.own[name] for state in states]
    matrix = matrix_of(rows)
    if matrix is None:
        matrix = torch.stack(rows)
        for state, row in zip(states, matrix, strict=True):
            state.own[name] = row
    return matrix


def mean_of_own(states: Sequence[FeedbackState], name: str) -> Tensor:
    """Return the mean over ranks of a tensor that each rank holds; tensors of lost ranks are lost."""
    return torch.stack([state.own[name] for state in states]).mean(0)


def rebalanced(
    state: FeedbackState, rank: int, size: int, own: dict[str, Tensor], shared: dict[str, Tensor]
) -> FeedbackState:
    """Return ``state`` for ``rank`` of ``size`` ranks that all hold ``own`` and have the mean of the old weights."""
    weights = [sum(state.weights) / len(state.weights)] * size
    own = {name: value.clone() for name, value in own.items()}
    return replace(state, rank=rank, weights=weights, own=own, shared=shared, members=[], sent=None)


def regroup(state: FeedbackState, rank: int, members: Sequence[int]) -> list[int | None]:
    """Let ``state`` be that of ``rank`` among ``members``; return the former place of each, None for a joiner.

    Members keep their weights, and joiners have none. A rank that finds the state of another one is a joiner.
    """
    former = {other: place for place, other in enumerate(state.ranks)}
    places = [former.get(member) for member in members]
    state.weights = [0.0 if place is None else state.weights[place] for place in places]
    state.rank, state.members = list(members).index(rank), list(members)
    return places


def start_alike(state: FeedbackState, rank: int, members: Sequence[int], estimate: Tensor, weight: float) -> None:
    """Give every member the same estimate and weight; a message that is sent again changes its own as before."""
    regroup(state, rank, members)
    state.weights, state.shared["sum"] = [weight] * len(members), estimate * len(members)
    state.own["estimate"] = own = estimate.clone()
    if state.sent is not None:
        message, factor = state.sent
        message.add_into(own, factor)
