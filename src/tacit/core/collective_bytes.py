"""Bytes that each rank sends in a collective, used by the simulator and by the traces of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def ring_all_reduce_bytes(elements: int, element_bytes: int, size: int) -> tuple[int, ...]:
    """Return the bytes that each of ``size`` ranks sends in a ring all-reduce: 2(n−1) of n chunks.

    The first chunks may be one element longer. To reduce, rank i sends all chunks but i + 1; to gather, all but i + 2.
    Cached, because most rounds have equal sizes.
    """
    chunks = [(elements // size + (place < elements % size)) * element_bytes for place in range(size)]
    total = sum(chunks)
    return tuple(2 * total - chunks[(i + 1) % size] - chunks[(i + 2) % size] if size > 1 else 0 for i in range(size))


def handed_out_bytes(sizes_bytes: Sequence[int], place: int) -> int:
    """Return the bytes that a rank sends to all others, ``sizes_bytes[j]`` to rank j."""
    return sum(sizes_bytes) - sizes_bytes[place]


def tree_broadcast_bytes(size_bytes: int, source: int, size: int) -> list[int]:
    """Return the bytes that each rank sends in a binomial tree.

    In each stage every rank that has the value sends it to one that does not.
    """
    sent, reach = [0] * size, 1
    while reach < size:
        for giver in range(min(reach, size - reach)):
            sent[(giver + source) % size] += size_bytes
        reach *= 2
    return sent
