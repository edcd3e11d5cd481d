"""A topology among some of the ranks of a run: those that are left after others were lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tacit.topology.topology import Neighbours, Topology


@dataclass(frozen=True)
class Among(Topology):
    """The edges of ``topology``, which has ``ranks`` ranks, among ``members``, by their places.

    Parts that have no edge to each other are connected in a ring, by the first member of each.
    """

    topology: Topology
    ranks: int
    members: tuple[int, ...]

    @property
    def is_directed(self) -> bool:
        return self.topology.is_directed

    def cycle(self, size: int) -> int:
        return self.topology.cycle(self.ranks)

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        places = {member: place for place, member in enumerate(self.members)}
        whole = [self.topology.neighbours(self.ranks, phase) for phase in range(self.cycle(size))]
        reach = [{places[j] for j in whole[round % len(whole)][i] if j in places} for i in self.members]
        parts = _parts(whole, places)
        for part, following in zip(parts, [*parts[1:], parts[0]], strict=True) if len(parts) > 1 else ():
            reach[part[0]].add(following[0])
            if not self.is_directed:
                reach[following[0]].add(part[0])
        return reach


def among(topology: Topology, ranks: int, members: Sequence[int]) -> Topology:
    """Return the topology among ``members`` of ``ranks``, whose nodes are the places of the members.

    It is ``topology`` for that many nodes, where that exists; else the edges that are left.
    """
    return topology if len(members) == ranks else _among(topology, ranks, tuple(members))


@lru_cache(maxsize=64)
def _among(topology: Topology, ranks: int, members: tuple[int, ...]) -> Topology:
    try:
        topology.neighbours(len(members))
    except ValueError:
        return Among(topology, ranks, members)
    return topology


def _parts(rounds: Sequence[Neighbours], places: dict[int, int]) -> list[list[int]]:
    """Return the places in parts without edges between them in any round; in each, every place reaches every other."""
    reach: dict[int, set[int]] = {place: set() for place in places.values()}
    for neighbours in rounds:
        for member, place in places.items():
            reach[place].update(places[other] for other in neighbours[member] if other in places)
    known = {place: _reached(reach, place) for place in reach}
    parts: list[list[int]] = []
    for place in sorted(known):
        mine = next((part for part in parts if part[0] in known[place] and place in known[part[0]]), None)
        if mine is None:
            parts.append([place])
        else:
            mine.append(place)
    return parts


def _reached(reach: dict[int, set[int]], start: int) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        new = [place for place in reach[todo.pop()] if place not in seen]
        seen.update(new)
        todo.extend(new)
    return seen
