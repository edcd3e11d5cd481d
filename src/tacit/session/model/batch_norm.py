"""Buffers of a model to report: averaged, recalibrated on data, or kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Calibration = Callable[[], Iterable[Any]] | Iterable[Any]


def report(model: nn.Module, policy: str, batches: Calibration | None, mean: Callable[[Tensor], Tensor] | None) -> None:
    """Apply ``policy``. ``batches``: to recalibrate on; ``mean``: over all workers, None for a single worker."""
    if policy == "average" and mean is not None:
        average(model, mean)
    elif policy == "recalibrate":
        assert batches is not None  # checked at attach
        recalibrate(model, batches() if callable(batches) else batches)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> None:
    """Replace BatchNorm statistics by their plain mean over ``batches``: inputs, or tuples that begin with one."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    modes = [(m, m.training) for m in model.modules()]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    try:
        for batch in batches:
            model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def average(model: nn.Module, mean: Callable[[Tensor], Tensor]) -> None:
    """Replace floating-point buffers by their means, one exchange per dtype; counters and masks stay."""
    floats = [b for b in model.buffers() if b.is_floating_point()]
    for dtype in dict.fromkeys(b.dtype for b in floats):
        alike = [b for b in floats if b.dtype == dtype]
        result = mean(torch.cat([b.reshape(-1) for b in alike]))
        for buffer, part in zip(alike, torch.split(result, [b.numel() for b in alike]), strict=True):
            buffer.copy_(part.view(buffer.shape))
