"""The turns that the optimizers of a session take in one step, and which gradients each of them sees.

A strategy that communicates gradients does so before the first turn. A gradient that is computed later would stay this
rank's own, so it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tacit.errors import MisplacedCall
from tacit.session.steps.optimizers import Optimizers


class OptimizerTurns:
    """One step after the other; in each, every optimizer has one turn, in any order."""

    def __init__(self, optimizers: Optimizers, parameters: Sequence[nn.Parameter], *, watches: bool) -> None:
        """``watches``: look for gradients that are computed after they were communicated."""
        self._optimizers, self._parameters = optimizers, parameters
        self._stepped: list[Optimizer] = []  # those that had their turn in the step under way
        self._is_communicated = False
        self._computed: set[int] = set()  # parameters whose gradient was computed after that
        self._withheld: dict[nn.Parameter, Tensor] = {}  # gradients that a scaler must not see before their turn
        self._hidden: dict[nn.Parameter, Tensor | None] = {}  # gradients that the optimizer must not see in its turn
        self._watching: list[RemovableHandle] = []
        if watches and len(optimizers) > 1:
            self._watching = [p.register_post_accumulate_grad_hook(self._see) for p in parameters]  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """Leave no hook behind."""
        for handle in self._watching:
            handle.remove()

    @property
    def are_under_way(self) -> bool:
        """Whether some optimizers have had their turn in this step, and others not."""
        return bool(self._stepped)

    def begin(self) -> None:
        """A step begins."""
        self._is_communicated = False
        self._withheld, self._computed = {}, set()

    def communicated(self, first: Optimizer, *, overflowed: bool) -> None:
        """The gradients of all are those that the strategy left, before the turn of ``first``.

        Where they had overflowed on this rank, a scaler must find that in the gradients of the later optimizers, too,
        to lower its scale.
        """
        self._is_communicated = True
        if overflowed:
            mine = {id(p) for p in _parameters_of(first)}
            others = {p: p.grad for p in self._parameters if id(p) not in mine and p.grad is not None}
            self._withheld = {p: grad.clone() for p, grad in others.items()}
            for gradient in others.values():
                gradient.fill_(math.inf)

    def follow(self, optimizer: Optimizer) -> None:
        """``optimizer`` has its turn after another one; refuse a second turn, and gradients that came too late."""
        name = type(optimizer).__name__
        if any(other is optimizer for other in self._stepped):
            waiting = [type(o).__name__ for o in self._optimizers if not any(o is other for other in self._stepped)]
            raise MisplacedCall(
                f"{name} steps a second time before {' and '.join(waiting)} has stepped; "
                f"call step() of every attached optimizer once in each step."
            )
        if not self._computed.isdisjoint(id(p) for p in _parameters_of(optimizer)):
            raise MisplacedCall(
                f"gradients of {name} were computed after those of this step were communicated, before the first optimizer's step; "
                f"compute all gradients before it, or use a strategy that averages models, such as LocalSGD()."
            )
        for parameter in _parameters_of(optimizer):
            if parameter in self._withheld:
                parameter.grad = self._withheld.pop(parameter)

    def hide_gradients(self, optimizer: Optimizer) -> None:
        """Without gradients every torch optimizer leaves parameters and its state as they are."""
        for parameter in _parameters_of(optimizer):
            self._hidden[parameter] = parameter.grad
            parameter.grad = None

    def show_gradients(self) -> None:
        """Put hidden gradients back."""
        for parameter, gradient in self._hidden.items():
            parameter.grad = gradient
        self._hidden.clear()

    def forget_hidden(self) -> None:
        """Gradients are hidden still if the optimizer raised in its turn."""
        self._hidden.clear()

    def end(self, optimizer: Optimizer) -> bool:
        """The turn of ``optimizer`` is over; return whether the step is."""
        self.show_gradients()
        self._stepped.append(optimizer)
        if len(self._stepped) < len(self._optimizers):
            return False
        self._stepped = []
        self._is_communicated = False
        return True

    def refuse_end_within(self) -> None:
        """Raise where a session is closed between two turns."""
        if self._stepped:
            raise MisplacedCall(
                f"session.close() in the middle of a step: of {self._optimizers} only {Optimizers(self._stepped)} has stepped; "
                f"call step() of every attached optimizer once in each step."
            )

    def _see(self, parameter: Tensor) -> None:
        if self._is_communicated:
            self._computed.add(id(parameter))


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
