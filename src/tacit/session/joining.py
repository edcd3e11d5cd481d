"""Joining a run whose strategy sends messages: the model comes from the strategy, the rest from any worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.errors import BadMessage
from tacit.session.attaching import SessionParts, untrained_tensors
from tacit.session.backend import SessionBackend, Start, StartExchange


def offer_start(exchange: StartExchange, parts: SessionParts) -> None:
    """Give workers that join what they need of this one."""
    tensors = untrained_tensors(parts.module, parts.flat)
    exchange.offer(lambda: Start(parts.hooks.step, 0.0, [tensor.detach().cpu() for tensor in tensors]))


def join_run(backend: SessionBackend, exchange: StartExchange, parts: SessionParts) -> None:
    """Continue where the others are: at their step, with their model."""
    start = exchange.fetch()
    _copy(start.tensors, untrained_tensors(parts.module, parts.flat))
    if parts.server is None:
        parts.worker.meter.step = start.step
    backend.set_clock(start.time_s)
    parts.recorder.continue_at(start.time_s)
    parts.hooks.join()
    exchange.end()


@torch.no_grad()
def _copy(given: Sequence[Tensor], own: Sequence[Tensor]) -> None:
    if [tensor.shape for tensor in given] != [tensor.shape for tensor in own]:
        raise BadMessage("a worker gave frozen parameters and buffers of other shapes than this model's.")
    for mine, theirs in zip(own, given, strict=True):
        mine.copy_(theirs)
