"""End of a SwarmSGD run: undo exchanges that only one side has applied, and average over all nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.compression.feedback.updates import computed_once
from tacit.core.worker import Worker
from tacit.strategies.swarm.messages import SwarmUnanswered
from tacit.strategies.swarm.state import SwarmState


def reconcile(worker: Worker, state: SwarmState) -> None:
    """Wait until all nodes have sent their last request, then undo changes of exchanges that the initiator lacks.

    An exchange counts if its initiator has applied the response. From here on all nodes ignore messages, so a request
    that is still unanswered stays so. The node that responded to it subtracts its change.
    """
    mean_of_all(worker, torch.zeros(1))
    state.is_finished = True
    numbers = torch.tensor(list(state.requested), dtype=torch.int64)
    gathered = worker.network.all_gather(SwarmUnanswered(numbers))
    unanswered = computed_once(gathered, "numbers", lambda: {one for each in gathered for one in each.numbers.tolist()})
    for number, change in state.applied.items():
        if number in unanswered:
            state.buffer.sub_(change)


def mean_of_all(worker: Worker, tensor: Tensor) -> Tensor:
    """Return the mean over all remaining workers, without their extra state: buffers of modules stay local."""
    return worker.network.all_reduce_mean(tensor, extra_state=False)
