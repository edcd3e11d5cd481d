"""Directed graphs, for push-sum (Assran et al., ICML 2019, arXiv 1811.10792).

Both have edges i → i + 2^j (mod n) with 2^j < n, j = 0 … ⌈log₂ n⌉ − 1. Every rank has as many in-neighbours as
out-neighbours, so the uniform weights over a rank and its out-neighbours are doubly stochastic for any n.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tacit.topology.topology import Topology


@dataclass(frozen=True)
class ExponentialGraph(Topology):
    """Exponential graph: rank i sends to i + 1, i + 2, i + 4, … (mod n) in every round (Ying et al., arXiv 2110.13363).

    Each rank has ⌈log₂ n⌉ neighbours.
    """

    @property
    def is_directed(self) -> bool:
        return True

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [{(i + hop) % size for hop in _hops(size)} for i in range(size)]


@dataclass(frozen=True)
class OnePeer(Topology):
    """One-peer exponential graph: rank i sends to one peer, i + 2^(t mod ⌈log₂ n⌉) (mod n), in round t.

    If n is a power of two, all ranks have the exact mean after log₂ n rounds (Ying et al., arXiv 2110.13363). For other
    n they approach it.
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
