"""Outer optimizers: the step from the last common model r towards the mean x̄ of a round.

    Δ = r − x̄                     the outer gradient
    r ← x̄ − (u(Δ) − Δ)            = r − u(Δ); in this form u(Δ) = Δ gives x̄ itself, bit for bit

    OuterSGD     m ← β m + Δ,  u = α m;  Nesterov: u = α (Δ + β m)     DiLoCo (Douillard et al., arXiv 2311.08105)
    SlowMo       m ← β m + Δ/γ,  u = α γ m                            Wang et al., arXiv 1910.00643
    DelayedNesterov  in ``delayed_nesterov.py``, for asynchronous updates
    OuterAdam    Adam with the gradient Δ                             FedAdam (Reddi et al., arXiv 2003.00295)

All ranks run the same step on the same numbers, so their models stay equal without further communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core.specs import ALWAYS_SPELLED, Spec
from tacit.errors import require

OuterState = dict[str, Tensor]


class Outer(Spec, ABC):
    """Base class of outer optimizers: the step of the common model after each round of ``LocalSGD``.

    Derive a frozen keyword-only dataclass. Override ``step``, which returns the step for the outer gradient; keep
    tensors between rounds in ``state``. Every rank runs it on the same numbers. Set ``needs_rate`` where ``step`` reads
    ``learning_rate``.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class OuterSign(tacit.Outer):
    ...     lr: float = 0.1
    ...     def step(self, state, delta, learning_rate):
    ...         return self.lr * delta.sign()
    >>> strategy = tacit.LocalSGD(period=tacit.Every(2), outer=OuterSign())
    >>> tacit.simulate(tacit.workloads.quadratic(dimension=3), strategy, steps=6).status
    'finished'
    """

    needs_rate: ClassVar[bool] = False  # whether ``step`` uses the workers' learning rate

    @abstractmethod
    def step(self, state: OuterState, delta: Tensor, learning_rate: float) -> Tensor:
        """Return the step u for the outer gradient ``delta``; ``learning_rate`` is that of the workers, γ."""

    def apply(self, state: OuterState, previous: Tensor, mean: Tensor, learning_rate: float) -> Tensor:
        """Return the next common model, given the ``previous`` one and the ``mean`` of the workers' models."""
        delta = previous - mean
        return mean - (self.step(state, delta, learning_rate) - delta)


@dataclass(frozen=True, kw_only=True)
class OuterSGD(Outer):
    """SGD on the outer gradient; lr=0.7, momentum=0.9, nesterov=True is DiLoCo (Douillard et al., arXiv 2311.08105)."""

    lr: float = 1.0  # α
    momentum: float = 0.0  # β
    nesterov: bool = False

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr={self.lr} must be positive; 1.0 is plain averaging.")
        require(0 <= self.momentum < 1, f"momentum={self.momentum} must be at least 0 and below 1.")
        require(self.momentum > 0 or not self.nesterov, "nesterov=True needs a momentum above 0; DiLoCo uses 0.9.")

    def step(self, state: OuterState, delta: Tensor, learning_rate: float) -> Tensor:
        if self.momentum == 0:
            return delta * self.lr
        buffer = state.setdefault("momentum", torch.zeros_like(delta))
        buffer.mul_(self.momentum).add_(delta)
        return (delta + self.momentum * buffer if self.nesterov else buffer) * self.lr


@dataclass(frozen=True, kw_only=True)
class SlowMo(Outer):
    """Slow momentum (Wang et al., arXiv 1910.00643): m ← β m + Δ/γ, r ← r − α γ m."""

    lr: float = 1.0  # α
    momentum: float = field(default=0.5, metadata=ALWAYS_SPELLED)  # β

    needs_rate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr={self.lr} must be positive.")
        require(0 <= self.momentum < 1, f"momentum={self.momentum} must be at least 0 and below 1.")

    def step(self, state: OuterState, delta: Tensor, learning_rate: float) -> Tensor:
        buffer = state.setdefault("momentum", torch.zeros_like(delta))
        if learning_rate == 0:
            return delta  # workers did not move, and Δ/γ is not defined: take the mean
        buffer.mul_(self.momentum).add_(delta, alpha=1 / learning_rate)
        return buffer * (self.lr * learning_rate)


@dataclass(frozen=True, kw_only=True)
class OuterAdam(Outer):
    """Adam on the outer gradient (FedAdam, Reddi et al., arXiv 2003.00295)."""

    lr: float = field(default=0.01, metadata=ALWAYS_SPELLED)
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr={self.lr} must be positive.")
        require(
            0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, f"beta1={self.beta1}, beta2={self.beta2} must be in [0, 1)."
        )
        require(self.eps > 0, f"eps={self.eps} must be positive.")

    def step(self, state: OuterState, delta: Tensor, learning_rate: float) -> Tensor:
        first = state.setdefault("first", torch.zeros_like(delta)).lerp_(delta, 1 - self.beta1)
        second = state.setdefault("second", torch.zeros_like(delta)).lerp_(delta.square(), 1 - self.beta2)
        count = state.setdefault("count", torch.zeros((), dtype=torch.float64)).add_(1).item()
        corrected = first / (1 - self.beta1**count)
        return self.lr * corrected / ((second / (1 - self.beta2**count)).sqrt() + self.eps)
