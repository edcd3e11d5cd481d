"""Closures given to ``optimizer.step``, for strategies that need the gradient before the step.

The closure is evaluated once, then the strategy's hook uses its gradient, and the optimizer gets a substitute that
returns the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import MisplacedCall

Closure = Callable[[], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """Return the closure among the arguments of ``step`` other than the optimizer."""
    return next((value for value in (*args, kwargs.get("closure")) if callable(value)), None)


def evaluate(closure: Closure) -> Any:
    """Return the closure's loss."""
    with torch.enable_grad():
        return closure()


def with_substitute(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure, substitute: SubstituteClosure
) -> Arguments:
    """Return the arguments of ``step`` with ``substitute`` in place of ``closure``."""
    named = {name: substitute if value is closure else value for name, value in kwargs.items()}
    return tuple(substitute if value is closure else value for value in args), named


class SubstituteClosure:
    """Returns the loss of a closure that was evaluated before the optimizer's step."""

    def __init__(self, loss: Any, optimizer: str, parameters: Sequence[nn.Parameter]) -> None:
        self._loss, self._optimizer, self._is_called = loss, optimizer, False
        self._seen = [(p, p._version, p.grad, _version(p.grad)) for p in parameters]

    def __call__(self) -> Any:
        if self._is_called or self._is_changed():
            raise MisplacedCall(
                f"{self._optimizer} evaluates its closure several times, or after it has changed the model, in one "
                f"step; a strategy that sends gradients before the step cannot support that. Use one that averages "
                f"models, such as LocalSGD()."
            )
        self._is_called = True
        return self._loss

    def _is_changed(self) -> bool:
        """Whether a parameter or gradient has changed since the closure was evaluated."""
        return any(
            p._version != version or p.grad is not grad or _version(p.grad) != grad_version
            for p, version, grad, grad_version in self._seen
        )


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None else tensor._version
