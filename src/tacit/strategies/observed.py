"""What a worker has observed since one of several readers took it."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.worker import ObservedLosses


@dataclass
class Observed:
    """The data and losses since one reader's last call of ``take``."""

    steps: int = 0
    weight: float = 0.0
    first_loss: float | None = None
    loss: float | None = None

    def add(self, seen: ObservedLosses) -> None:
        """Add what the worker has observed since the previous call."""
        if self.steps == 0:
            self.first_loss = seen.first_loss
        if seen.loss is not None and self.loss is not None:
            self.loss = (self.loss * self.steps + seen.loss * seen.steps) / (self.steps + seen.steps)
        elif seen.loss is not None:
            self.loss = seen.loss
        self.steps += seen.steps
        self.weight += seen.weight

    def take(self) -> ObservedLosses:
        """Return what has been added since the last call."""
        taken = ObservedLosses(self.steps, self.weight, self.first_loss, self.loss)
        self.steps, self.weight, self.first_loss, self.loss = 0, 0.0, None, None
        return taken
