"""How many bytes each rank puts on the wire in a collective: the simulator prices them, real runs count them, and both
mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def ring_all_reduce_bytes(elements: int, element_bytes: int, size: int) -> tuple[int, ...]:
    """Return what each of ``size`` ranks sends in a ring all-reduce: 2(n−1) of n chunks.

    The first chunks may be one element longer. To reduce, rank i sends all chunks but i + 1; to gather, all but i + 2.
    Cached, because most rounds are alike.
    """
    chunks = [(elements // size + (place < elements % size)) * element_bytes for place in range(size)]
    total = sum(chunks)
    return tuple(2 * total - chunks[(i + 1) % size] - chunks[(i + 2) % size] if size > 1 else 0 for i in range(size))


def handed_out_bytes(sizes_bytes: Sequence[int], place: int) -> int:
    """Return what the rank at ``place`` sends that gives ``sizes_bytes[j]`` to every rank j."""
    return sum(sizes_bytes) - sizes_bytes[place]


def tree_broadcast_bytes(size_bytes: int, source: int, size: int) -> list[int]:
    """Return what each rank sends in a binomial tree: in each stage everybody who has the value passes it to one who
    has not.
    """
    sent, reach = [0] * size, 1
    while reach < size:
        for giver in range(min(reach, size - reach)):
            sent[(giver + source) % size] += size_bytes
        reach *= 2
    return sent
