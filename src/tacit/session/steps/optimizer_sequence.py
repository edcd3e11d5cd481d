"""The order in which the optimizers of a session step, and the gradients that each of them sees.

A strategy that communicates gradients does so before the first optimizer steps. A gradient that is computed later would
stay this rank's own, so it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tacit.errors import MisplacedCall
from tacit.session.steps.optimizers import Optimizers


class OptimizerSequence:
    """Checks that in each step every optimizer steps once, in any order."""

    def __init__(self, optimizers: Optimizers, parameters: Sequence[nn.Parameter], *, watches: bool) -> None:
        """``watches``: detect gradients that are computed after the strategy has communicated."""
        self._optimizers, self._parameters = optimizers, parameters
        self._stepped: list[Optimizer] = []  # in the step in progress
        self._is_communicated = False
        self._computed: set[int] = set()  # parameters whose gradient was computed after that
        self._withheld: dict[nn.Parameter, Tensor] = {}  # gradients that a scaler must not see before their step
        self._hidden: dict[nn.Parameter, Tensor | None] = {}  # gradients that the optimizer must not see in its step
        self._handles: list[RemovableHandle] = []
        if watches and len(optimizers) > 1:
            for parameter in parameters:
                handle = parameter.register_post_accumulate_grad_hook(self._see)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def close(self) -> None:
        """Remove the hooks on parameters."""
        for handle in self._handles:
            handle.remove()

    @property
    def has_begun(self) -> bool:
        """Whether some optimizers have stepped in this step, and others have not."""
        return bool(self._stepped)

    def begin(self) -> None:
        """Begin a step."""
        self._is_communicated = False
        self._withheld, self._computed = {}, set()

    def mark_communicated(self, first: Optimizer, *, overflowed: bool) -> None:
        """Mark all gradients as communicated, before ``first`` steps.

        ``overflowed``: on this rank. The scaler must find the overflow in the gradients of the later optimizers too, in
        order to lower its scale.
        """
        self._is_communicated = True
        if overflowed:
            mine = {id(p) for p in _parameters_of(first)}
            others = {p: p.grad for p in self._parameters if id(p) not in mine and p.grad is not None}
            self._withheld = {p: grad.clone() for p, grad in others.items()}
            for gradient in others.values():
                gradient.fill_(math.inf)

    def begin_next(self, optimizer: Optimizer) -> None:
        """Check a step of ``optimizer`` after another one's: refuse a second step, and gradients that came too late."""
        name = type(optimizer).__name__
        if any(other is optimizer for other in self._stepped):
            waiting = [type(o).__name__ for o in self._optimizers if not any(o is other for other in self._stepped)]
            raise MisplacedCall(
                f"{name} steps a second time before {' and '.join(waiting)} has stepped; "
                f"call step() of every attached optimizer once in each step."
            )
        if not self._computed.isdisjoint(id(p) for p in _parameters_of(optimizer)):
            raise MisplacedCall(
                f"gradients of {name} were computed after those of this step were communicated, "
                f"before the first optimizer's step; compute all gradients before it, or use a strategy that averages "
                f"models, such as LocalSGD()."
            )
        for parameter in _parameters_of(optimizer):
            if parameter in self._withheld:
                parameter.grad = self._withheld.pop(parameter)

    def hide_gradients(self, optimizer: Optimizer) -> None:
        """Hide the gradients of ``optimizer``: without gradients it changes neither parameters nor its state."""
        for parameter in _parameters_of(optimizer):
            self._hidden[parameter] = parameter.grad
            parameter.grad = None

    def restore_gradients(self) -> None:
        """Restore hidden gradients."""
        for parameter, gradient in self._hidden.items():
            parameter.grad = gradient
        self._hidden.clear()

    def discard_hidden(self) -> None:
        """Discard hidden gradients of an optimizer that raised in its step."""
        self._hidden.clear()

    def end(self, optimizer: Optimizer) -> bool:
        """Complete the step of ``optimizer``; return whether all optimizers have stepped."""
        self.restore_gradients()
        self._stepped.append(optimizer)
        if len(self._stepped) < len(self._optimizers):
            return False
        self._stepped = []
        self._is_communicated = False
        return True

    def check_complete(self) -> None:
        """Raise if some optimizers have stepped in this step, and others have not."""
        if self._stepped:
            raise MisplacedCall(
                f"session.close() in the middle of a step: of {self._optimizers} only "
                f"{Optimizers(self._stepped)} has stepped; "
                f"call step() of every attached optimizer once in each step."
            )

    def _see(self, parameter: Tensor) -> None:
        if self._is_communicated:
            self._computed.add(id(parameter))


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
