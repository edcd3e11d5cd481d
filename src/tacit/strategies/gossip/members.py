"""Rounds of neighbours whose members change: nodes that are lost, and joiners.

Nodes that notice a change may be in different rounds. They agree on the latest of their next rounds, and mix again from
that one on, over the members. Until then a node that is behind trains alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from tacit.core.worker import Worker
from tacit.errors import MembersChanged
from tacit.strategies.gossip.neighbours import GossipState

Hook = Callable[[Any, Worker, Any], None]


def in_each_round(hook: Hook) -> Hook:
    """Let ``hook`` run in the rounds in which the node mixes, and anew where the members change meanwhile."""

    @wraps(hook)
    def run(self: Any, worker: Worker, state: GossipState) -> None:
        is_done = worker.size == 1
        while not is_done and worker.step >= state.first_round:
            try:
                hook(self, worker, state)
                is_done = True
            except MembersChanged:
                continue
        state.under_way = 0

    return run


def agree_on_round(worker: Worker, state: GossipState, members: Sequence[int]) -> None:
    """Let all ``members`` mix again in the latest of their next rounds.

    They also agree on the last round with data: its news may not have reached all of them.
    """
    count, place = len(members), list(members).index(worker.rank)
    numbers = [0.0] * (2 * count)  # of each member: its next round, and the last one with data
    under_way = state.under_way if state.rank == worker.rank else 0
    numbers[2 * place : 2 * place + 2] = float(under_way or worker.step + 1), float(state.last_data_round)
    sent = (torch.zeros(1, dtype=torch.float64), numbers)
    means = worker.network.all_reduce_mean(sent, extra_state=False)[1:].view(count, 2)
    first_round, last_data_round = (means.max(0).values * count).round().tolist()
    state.members, state.first_round, state.last_data_round = list(members), int(first_round), int(last_data_round)
