"""GradScaler: a step that it skips still counts as a step (rule 9).

A scaler that found an overflow would not call ``optimizer.step()``, and this rank would miss a collective that the
others join. A scaler always calls an optimizer that declares to handle scaling itself, and sets the scale and the
overflow flag as its attributes. Both are taken from the optimizer here, before it reads them.

With several optimizers, the gradients of all are unscaled before the first one's step, because the strategy
communicates them then. An overflow in the gradients of one skips the step of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.errors import MisplacedCall
from tacit.session.steps.optimizers import Optimizers

_FLAG = "_step_supports_amp_scaling"


class _Finding(NamedTuple):
    """What a scaler sets on an optimizer."""

    overflow: Tensor
    scale: Tensor | None  # None: the user has called unscale_


class GradScalerSteps:
    """Handles scaling for the optimizers of a session, until ``close``."""

    def __init__(self, optimizers: Optimizers, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [(optimizer, optimizer.__dict__.get(_FLAG)) for optimizer in optimizers]
        self._found: _Finding | None = None
        for optimizer in optimizers:
            setattr(optimizer, _FLAG, True)

    def close(self) -> None:
        """Restore the optimizers' own declarations."""
        for optimizer, before in self._before:
            if before is None:
                optimizer.__dict__.pop(_FLAG, None)
            else:
                setattr(optimizer, _FLAG, before)

    def begin_step(self, optimizer: Optimizer) -> bool:
        """Unscale all gradients if there is a scaler; return whether to skip the step. ``optimizer`` steps first."""
        self._found = _take(optimizer)
        if self._found is None:
            return False
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if float(self._found.overflow) > 0:
            return True
        if len(self._before) > 1 and not all(map(_is_finite, gradients)):
            return True
        if self._found.scale is not None:
            torch._foreach_mul_(gradients, 1.0 / float(self._found.scale))
        return False

    def begin_next(self, optimizer: Optimizer) -> None:
        """Check that the scaler treats ``optimizer``, which steps after the first, like the first."""
        own = _take(optimizer)
        if own is None:
            return
        if self._found is None or (own.scale is None) != (self._found.scale is None):
            raise MisplacedCall(
                "a GradScaler treats the attached optimizers differently; call scaler.unscale_() for all of them or "
                "for none, before the first one's step, and scaler.step() for all of them."
            )


def _is_finite(gradient: Tensor) -> bool:
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).isfinite().all())


def _take(optimizer: Optimizer) -> _Finding | None:
    """Remove and return what a scaler set on ``optimizer``; None if there is no scaler."""
    found = optimizer.__dict__.get("found_inf")
    if found is None:
        return None
    scale = optimizer.__dict__.get("grad_scale")
    optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]
    return _Finding(found, scale)
