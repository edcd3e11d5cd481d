"""Joining a run whose strategy sends messages: the model comes from the strategy, the rest from any worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit.errors import BadMessage
from tacit.session.attaching import SessionParts, untrained_tensors
from tacit.session.backend import SessionBackend, Start, StartExchange
from tacit.session.model.flat_parameters import FlatModel


def give_start(exchange: StartExchange, module: nn.Module, flat: FlatModel, step: int) -> None:
    """Give workers that join what they need of this one, which has completed ``step`` steps."""
    tensors = untrained_tensors(module, flat)
    exchange.give(lambda: Start(step, 0.0, [tensor.detach().cpu() for tensor in tensors]))


def join_run(backend: SessionBackend, exchange: StartExchange, parts: SessionParts, listen: Callable[[], None]) -> None:
    """Continue where the others are: with their model, then at their step.

    Handlers run while this waits, since a donor may wait for one of them; none runs before the strategy knows that it
    has no trained model yet. A server is told last: from then on it may wait for this learner before it answers others,
    and a donor that waits for the server gives nothing.
    """
    with backend.hook_lock:
        listen()
        if parts.server is None:
            parts.hooks.join()
    start = exchange.fetch()
    _copy(start.tensors, untrained_tensors(parts.module, parts.flat))
    if parts.server is None:
        parts.worker.meter.step = start.step
    backend.set_clock(start.time_s)
    parts.recorder.continue_at(start.time_s)
    if parts.server is not None:
        parts.hooks.join()
    exchange.end()


@torch.no_grad()
def _copy(given: Sequence[Tensor], own: Sequence[Tensor]) -> None:
    if [tensor.shape for tensor in given] != [tensor.shape for tensor in own]:
        raise BadMessage("a worker gave frozen parameters and buffers of other shapes than this model's.")
    for mine, theirs in zip(own, given, strict=True):
        mine.copy_(theirs)
