"""The vmapped gradient as a fixed list of torch operations, called without the layers of ``torch.func``.

``vmap`` and ``grad`` decide in each call which operations to run. For small models this takes longer than the
arithmetic. The operations do not depend on the numbers, so they are recorded once per shape of the mini-batches
(``recording``). The same operations have results that are equal to the bit. That is checked once for each power of two
of replicas; where it does not hold, ``vmap`` is called as before.

Only modules of ``torch.nn`` and of this package are recorded. Another one might decide in Python from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from tacit.simulation.engine.calls.recording import CannotRecord, recorded

GradientCall = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""From parameters by name and a batch, both with a leading dimension of replicas, to gradients and losses."""

CALLS_BEFORE_RECORDING: Final = 2
"""Calls with batches of one shape before they are recorded, which takes as long as a few of them."""

_RECORDED_REPLICAS: Final = 2
"""Replicas in the calls that are recorded: their number has no effect, and few take less time."""

_PACKAGES: Final = ("torch", "tacit")
_NOT_RECORDED: Final = (CannotRecord, RuntimeError, TypeError, ValueError, AttributeError, LookupError)
"""Errors of recording: the call is then made as before."""


class RecordedCalls:
    """A vmapped gradient that is recorded after some calls."""

    def __init__(self, call: GradientCall, module: nn.Module) -> None:
        self._call, self._is_recordable = call, is_recordable(module)
        self._calls: dict[tuple[torch.Size, ...], int] = {}  # by shapes of the mini-batches
        self._recorded: dict[tuple[torch.Size, ...], RecordedCall] = {}

    def __call__(self, parameters: dict[str, Tensor], *batch: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if not self._is_recordable or not batch[0].is_cpu:
            return self._call(parameters, *batch)
        key = tuple([part.shape[1:] for part in batch])
        call = self._recorded.get(key)
        if call is not None and call.is_checked(len(batch[0])):
            return call(parameters, batch)
        expected = self._call(parameters, *batch)
        if call is not None:
            self._is_recordable = are_equal(call(parameters, batch), expected)
            return expected
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if calls >= CALLS_BEFORE_RECORDING and len(batch[0]) > 1:
            try:
                self._recorded[key] = RecordedCall(self._call, parameters, batch)
            except _NOT_RECORDED:
                self._is_recordable = False
        return expected


class RecordedCall:
    """The operations of a call with batches of one shape."""

    def __init__(self, call: GradientCall, parameters: dict[str, Tensor], batch: Sequence[Tensor]) -> None:
        self._names, self._checked = tuple(parameters), set[int]()

        def flat(*values: Tensor) -> list[Tensor]:
            own = dict(zip(self._names, values, strict=False))
            gradients, losses = call(own, *values[len(own) :])
            return [*(gradients[name] for name in self._names), losses]

        inputs = [value[:_RECORDED_REPLICAS] for value in (*parameters.values(), *batch)]
        self._function = recorded(flat, inputs, [torch.cat((value, value)) for value in inputs])

    def __call__(self, parameters: dict[str, Tensor], batch: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        *gradients, losses = self._function(len(batch[0]), *parameters.values(), *batch)
        return dict(zip(self._names, gradients, strict=True)), losses

    def is_checked(self, replicas: int) -> bool:
        """Return whether a call with about as many replicas was compared; the caller compares this one if not."""
        power = replicas.bit_length()
        if power in self._checked:
            return True
        self._checked.add(power)
        return False


def is_recordable(module: nn.Module) -> bool:
    """Return whether all code of ``module`` is torch's or this package's, without hooks."""
    for part in module.modules():
        own = [type(part), *(value for value in vars(part).values() if callable(value))]
        if any((getattr(one, "__module__", None) or "").split(".")[0] not in _PACKAGES for one in own):
            return False
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            return False
    return True


def are_equal(one: tuple[dict[str, Tensor], Tensor], other: tuple[dict[str, Tensor], Tensor]) -> bool:
    """Return whether gradients and losses of two calls are equal to the bit, in tensors with the same strides."""
    pairs = [(one[1], other[1]), *((part, other[0][name]) for name, part in one[0].items())]
    return all(a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
