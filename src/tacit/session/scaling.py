"""GradScaler: a step it would skip is a step all the same (rule 9).

A scaler that found an overflow would not call ``optimizer.step()`` at all, and one rank would miss a collective that the others join. An optimizer
that says it handles scaling itself is always called, with the scale and the finding as attributes; both are taken from it here, before it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

_FLAG = "_step_supports_amp_scaling"


def take_over_scaling(optimizer: Optimizer) -> Callable[[], None]:
    """Make scalers always call ``optimizer.step()``; return what puts it back as it was."""
    before = optimizer.__dict__.get(_FLAG)
    setattr(optimizer, _FLAG, True)

    def undo() -> None:
        if before is None:
            optimizer.__dict__.pop(_FLAG, None)
        else:
            setattr(optimizer, _FLAG, before)

    return undo


def unscale(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    """Divide the gradients by the scale, if a scaler is at work, and return whether it wants the step skipped."""
    found = optimizer.__dict__.get("found_inf")
    if found is None:
        return False
    scale = optimizer.__dict__.get("grad_scale")
    optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]
    if float(found) > 0:
        return True
    if scale is not None:
        inverse = 1.0 / float(scale)
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], inverse)
    return False
