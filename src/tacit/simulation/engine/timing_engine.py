"""The engine of timing-only runs, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.core.worker import ObservedLosses
from tacit.simulation.engine.choice import Choice
from tacit.simulation.engine.operations import Snapshot
from tacit.workloads.workload import Token, Tokens


class TimingEngine:
    """An engine without gradients: parameters never change, only time and bytes are simulated."""

    def __init__(
        self, parameters: Tensor, learning_rate: float, schedule: Callable[[int], float], layout: Layout
    ) -> None:
        self.layout = layout
        self._parameters, self._gradient = parameters, torch.zeros_like(parameters)
        self._rate, self._schedule = learning_rate, schedule
        self.choice = Choice("timing", "timing_only=True")

    def advance(self, rank: int, step: int, tokens: Sequence[Token]) -> None: ...
    def advance_all(self, step: int, tokens: Sequence[Tokens]) -> None: ...
    def compute_gradient(self, rank: int, step: int, token: Token) -> None: ...
    def update(self, rank: int, step: int) -> None: ...
    def snapshot(self, rank: int, step: int, purpose: Snapshot) -> None: ...
    def set_gradient(self, rank: int, value: Tensor) -> None: ...
    def settle(self) -> None: ...
    def reset(self, rank: int) -> None: ...
    def release(self) -> None: ...
    def copy_worker(self, source: int, target: int) -> None: ...

    def size_bytes(self, rank: int) -> int:
        """Return the size of the parameters: optimizers have no state here."""
        return self._parameters.nbytes

    def row(self, rank: int) -> Tensor:
        return self._parameters

    def gradient(self, rank: int) -> Tensor:
        return self._gradient

    def deferred_gradient(self, rank: int) -> Tensor:
        return self._gradient

    def take_observed(self, rank: int) -> ObservedLosses:
        return ObservedLosses(1, 1.0, None, None)

    def weight(self, rank: int) -> float:
        return 1.0

    def learning_rate(self, step: int) -> float:
        return self._rate * self._schedule(step)
