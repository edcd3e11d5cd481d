"""What one rank observes between two rounds of ``LocalSGD``: its weight, and the loss at the averaged model.

    step      t          t+d       t+τ
              round      round     next
              begins     ends      round begins
                 [ local ][ averaged … ]

F(x̄) is the loss of the first step after the models were averaged. A round that is waited for (d = 0) averages them
where the interval begins. An overlapped round averages them d steps later, so the first loss of the interval is one at
the rank's own model and does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.weights import has_data
from tacit.core.worker import ObservedLosses


@dataclass
class Interval:
    """The steps since the latest round began."""

    weight: float = 0.0  # sum over the steps
    loss: float | None = (
        None  # mini-batch loss of the first step after the latest averaging; None: there was no such step
    )
    is_averaged: bool = True  # whether the next step starts from the averaged model

    def add(self, seen: ObservedLosses) -> None:
        """Add the steps since the previous call."""
        if seen.steps and self.is_averaged:
            self.loss, self.is_averaged = seen.first_loss, False
        self.weight += seen.weight

    def lacks_loss(self, seen: ObservedLosses) -> bool:
        """Whether ``seen`` has data and starts from the averaged model, but its first loss was not observed."""
        return self.is_averaged and seen.first_loss is None and has_data(seen.weight, seen.steps)
