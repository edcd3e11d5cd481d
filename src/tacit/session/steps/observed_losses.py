"""A meter of the steps, samples and losses of a worker since it was last read."""

from __future__ import annotations

import math

from torch import Tensor

from tacit.core.weights import SKIPPED_WEIGHT
from tacit.core.worker import ObservedLosses
from tacit.errors import NotFinite


class LossMeter:
    """Counts steps, samples and losses. Losses on a GPU stay there until they are read, to avoid a wait per step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.step = 0
        self.steps = 0  # since the last reading, with a loss or not
        self._weight = 0.0
        self._losses = 0  # steps with a loss
        self._loss: float | Tensor = 0.0  # their sum
        self._first: float | Tensor | None = None
        self._part: float | Tensor = 0.0  # of the step in progress: Σ samples · loss over its micro-batches
        self._part_samples = 0.0
        self._given_samples: float | None = None
        self._is_counted = False  # whether the step in progress is counted
        self.latest: float | Tensor | None = None  # loss of the last step that was counted

    def observe(self, loss: float | Tensor, samples: float | None) -> None:
        """Add the loss of a mini-batch, or of one micro-batch of the step in progress."""
        self._part = self._part + loss * (1.0 if samples is None else samples)
        self._part_samples += 1.0 if samples is None else samples
        if samples is not None:
            self._given_samples = (self._given_samples or 0.0) + samples

    @property
    def weight(self) -> float:
        """The weight of the step in progress: its samples if they were given, else 1."""
        return 1.0 if self._given_samples is None else self._given_samples

    def count(self, weight: float) -> None:
        """Count the step in progress, whose gradient is computed."""
        is_first = self._weight <= self.steps * SKIPPED_WEIGHT  # skipped steps left the model where it was
        self._is_counted = True
        self.steps += 1
        self._weight += weight
        self.latest = None
        if self._part_samples and weight != SKIPPED_WEIGHT:  # the loss of an overflow may be anything
            loss = self._part / self._part_samples
            self._first = loss if is_first else self._first
            self._loss = self._loss + loss
            self.latest = loss
            self._losses += 1

    def end_step(self, weight: float | None) -> None:
        """End the step; ``weight`` None: its gradient was dropped, and it is not counted."""
        if weight is not None and not self._is_counted:
            self.count(weight)
        self.step += 1
        self._is_counted = False
        self._part, self._part_samples, self._given_samples = 0.0, 0.0, None

    def skip(self, steps: int) -> None:
        """Count steps without data."""
        self.step += steps
        self.steps += steps

    def take(self) -> ObservedLosses:
        """Return what was observed since the last call, and reset."""
        first = None if self._first is None else float(self._first)
        loss = float(self._loss) / self._losses if self._losses else None
        if loss is not None and not math.isfinite(loss):
            raise NotFinite(self._rank, self.step, loss)
        seen = ObservedLosses(self.steps, self._weight, first, loss)
        self.steps, self._weight, self._losses, self._loss, self._first = 0, 0.0, 0, 0.0, None
        return seen

    def state_dict(self) -> dict[str, float | int | None]:
        return {
            "step": self.step,
            "steps": self.steps,
            "weight": self._weight,
            "losses": self._losses,
            "loss": float(self._loss),
            "first": None if self._first is None else float(self._first),
        }

    def load_state_dict(self, stored: dict[str, float | int | None]) -> None:
        self.step, self.steps = int(stored["step"] or 0), int(stored["steps"] or 0)
        self._weight, self._losses = float(stored["weight"] or 0), int(stored["losses"] or 0)
        self._loss, self._first = float(stored["loss"] or 0), stored["first"]
