"""How a swarm ends: with nothing half done, and with one model for all."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.core.worker import Worker
from tacit.strategies.swarm.messages import SwarmUnsettled
from tacit.strategies.swarm.nonblocking import SwarmState


def settle(worker: Worker, state: SwarmState) -> None:
    """Wait until everybody has asked for the last time, then take back what was given and never arrived.

    An exchange counts if its initiator has taken the answer. One that is listed as unsettled has not been taken and
    never will be, since from here on nobody listens; whoever answered it undoes its half.
    """
    mean_of_all(worker, torch.zeros(1))
    state.is_closed = True
    numbers = torch.tensor(list(state.asked), dtype=torch.int64)
    listed = worker.network.all_gather(SwarmUnsettled(numbers))
    unsettled = {number for one in listed for number in one.numbers.tolist()}
    for number, change in state.given.items():
        if number in unsettled:
            state.buffer.sub_(change)


def mean_of_all(worker: Worker, tensor: Tensor) -> Tensor:
    """Return the mean over all workers that are left.

    A named group: modules' buffers, which ride on rounds of all, stay each node's own.
    """
    return worker.network.all_reduce_mean(tensor, extra_state=False)
