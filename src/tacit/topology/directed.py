"""Graphs whose edges carry one way: for push-sum, which sends without an answer (Assran et al., ICML 2019, arXiv
1811.10792).

Both have edges i → i + 2^j (mod n) with 2^j < n, j = 0 … ⌈log₂ n⌉ − 1. Every rank sends and receives equally often, so
the uniform weights over out-neighbours and self are doubly stochastic here, for any n.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tacit.topology.topology import Topology


@dataclass(frozen=True)
class ExponentialGraph(Topology):
    """Rank i sends to i + 1, i + 2, i + 4, … (mod n) in every round: ⌈log₂ n⌉ neighbours each (Ying et al., arXiv
    2110.13363).
    """

    @property
    def is_directed(self) -> bool:
        return True

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [{(i + hop) % size for hop in _hops(size)} for i in range(size)]


@dataclass(frozen=True)
class OnePeer(Topology):
    """Rank i sends to one peer a round: in round t to i + 2^(t mod ⌈log₂ n⌉) (mod n).

    With n a power of two, log₂ n rounds give everybody the exact mean (Ying et al., arXiv 2110.13363); with any other n
    they come near it, and the rounds go on from there.
    """

    @property
    def is_directed(self) -> bool:
        return True

    def cycle(self, size: int) -> int:
        return max(1, len(_hops(size)))

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [[(i + _hops(size)[round]) % size] for i in range(size)]


def _hops(size: int) -> list[int]:
    """Return the powers of two below ``size``."""
    return [1 << j for j in range((size - 1).bit_length())]
