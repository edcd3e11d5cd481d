"""Disjoint groups of all ranks, and the mean over all ranks by way of them.

The first rank of a group is its leader. Leaders exchange across groups, and each broadcasts the result in its group.
With n numbers, G groups of m ranks: across groups a ring of leaders sends 2(G−1)n numbers. Parallel rings, in which the
j-th ranks of all groups exchange the j-th slice, also send 2(G−1)n, but need equal groups and cut a vector that a
compressor or a period rule needs whole. Inside a group, both send (m−1)n to spread the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tacit.cluster.links import host_of_each
from tacit.core.network import Network
from tacit.errors import require

GroupsArgument = int | Sequence[Sequence[int]] | None
_EXAMPLE: Final = "write groups=2, or a list of ranks for each group, such as [[0, 1], [2, 3]]"


@dataclass(frozen=True)
class Groups:
    """The groups of all ranks. ``place``: the number of this rank's group."""

    members: tuple[tuple[int, ...], ...]  # ranks of each group, the leader first
    place: int

    @property
    def own(self) -> tuple[int, ...]:
        """The ranks of this rank's group."""
        return self.members[self.place]

    @property
    def leader(self) -> int:
        """The leader of this rank's group."""
        return self.own[0]

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(group[0] for group in self.members)

    @property
    def share(self) -> float:
        """The size of this rank's group, relative to the mean size; 1.0 for equal groups, exactly."""
        return len(self.own) * len(self.members) / sum(map(len, self.members))

    @property
    def are_equal(self) -> bool:
        return len({len(group) for group in self.members}) == 1


def check_groups(groups: GroupsArgument) -> None:
    """Raise ``ValueError`` unless ``groups`` can be groups of some number of ranks."""
    if groups is None:
        return
    if isinstance(groups, int):
        require(groups >= 2, f"groups={groups} must be at least 2; inside one group use the inner strategy alone.")
        return
    is_list = isinstance(groups, list | tuple) and all(isinstance(group, list | tuple) for group in groups)
    wrong = f"groups={groups!r} must be a number of groups or lists of ranks; {_EXAMPLE}."
    require(is_list and all(type(rank) is int for group in groups for rank in group), wrong)
    require(
        len(groups) >= 2 and all(groups), f"groups={groups!r} must be at least 2 groups with a rank each; {_EXAMPLE}."
    )
    ranks = sorted(rank for group in groups for rank in group)
    once = f"groups={groups!r} must hold each rank from 0 to {len(ranks) - 1} once; {_EXAMPLE}."
    require(ranks == list(range(len(ranks))), once)


def divided(groups: GroupsArgument, network: Network) -> Groups:
    """Return the groups of the ranks of ``network``, or raise where they do not fit."""
    rank, size = network.rank, network.size
    if groups is None:
        return _by_hosts(network)
    if isinstance(groups, int):
        require(
            groups <= size, f"groups={groups} must be at most workers={size}; use fewer groups, or start more workers."
        )
        return _of_numbers(host_of_each(groups, size), rank)
    held = sum(map(len, groups))
    require(held == size, f"groups={groups!r} holds {held} ranks, but workers={size}; list each rank once.")
    place = next(number for number, group in enumerate(groups) if rank in group)
    return Groups(tuple(tuple(group) for group in groups), place)


def _by_hosts(network: Network) -> Groups:
    hosts = network.hosts
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    needs = (
        "groups=None makes one group of each host and needs several hosts, at least one of them with several workers"
    )
    found = f"here workers={network.size} on {len(numbers)} host{'s' * (len(numbers) > 1)}"
    require(1 < len(numbers) < network.size, f"{needs}; {found}. Otherwise {_EXAMPLE}.")
    return _of_numbers([numbers[host] for host in hosts], network.rank)


def _of_numbers(numbers: Sequence[int], rank: int) -> Groups:
    """Return the groups, given the number of each rank's group."""
    members = tuple(
        tuple(rank for rank, number in enumerate(numbers) if number == group) for group in range(max(numbers) + 1)
    )
    return Groups(members, numbers[rank])


def total_weight(network: Network, groups: Groups, vector: Tensor, weight: float) -> float:
    """Return the sum of weights of this rank's group, relative to a group of mean size with weights of 1."""
    if len(groups.own) == 1:
        return weight * groups.share
    numbers = vector.new_tensor([weight], dtype=torch.float64)
    return float(network.all_reduce_mean(numbers, group=groups.own)) * groups.share


def mean_by_groups(network: Network, groups: Groups, vector: Tensor, weight: float) -> Tensor:
    """Return Σ wᵢ xᵢ / Σ wᵢ over all ranks: inside groups, among leaders, and back."""
    total = total_weight(network, groups, vector, weight)
    if len(groups.own) > 1:
        vector = network.all_reduce_mean(vector, weight, group=groups.own)
    if network.rank == groups.leader:
        vector = network.all_reduce_mean(vector, total, group=groups.leaders)
    return broadcast_inside(network, groups, vector)


def broadcast_inside(network: Network, groups: Groups, tensor: Tensor) -> Tensor:
    """Return the tensor of the leader of this rank's group."""
    return tensor if len(groups.own) == 1 else network.broadcast(tensor, groups.leader, group=groups.own)
