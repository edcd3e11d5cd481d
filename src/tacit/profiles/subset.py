"""The profile of some of the workers: what remains if a slow machine is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tacit.cluster.delays import Delay
from tacit.core.network import SERVER
from tacit.errors import require

if TYPE_CHECKING:
    from tacit.profiles.profile import Profile

Value = TypeVar("Value")


def fields_of_ranks(profile: Profile, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the fields of ``profile`` that name ranks, for a cluster of ``ranks`` alone, numbered from 0."""
    require(
        len(set(ranks)) == len(ranks) >= 1 and all(0 <= rank < profile.workers for rank in ranks),
        f"ranks={list(ranks)} must be different ranks of 0 to {profile.workers - 1}; give at least one.",
    )
    place = {rank: at for at, rank in enumerate(ranks)}
    nodes = {**place, SERVER: SERVER}
    compute = profile.compute
    return {
        "workers": len(ranks),
        "compute": compute if isinstance(compute, Delay) else [compute[rank] for rank in ranks],
        "speed": _renumbered(profile.speed, place),
        "nics": _renumbered(profile.nics, nodes),
        "links": {(nodes[a], nodes[b]): link for (a, b), link in profile.links.items() if a in nodes and b in nodes},
        "hosts": [profile.host(rank) for rank in ranks] if profile.hosts is not None else None,
        "peak_memory_bytes": _renumbered(profile.peak_memory_bytes, place),
        "memory_bytes": _renumbered(profile.memory_bytes, place),
        "faults": (),
    }


def _renumbered(values: Mapping[int, Value], place: Mapping[int, int]) -> dict[int, Value]:
    return {place[rank]: value for rank, value in values.items() if rank in place}
