"""What one rank observes between two rounds of ``LocalSGD``: its weight, and the loss at the averaged model.

    step      t          t+d       t+τ
              round      round     next round
              starts     ends      starts
                 [ local ][ averaged … ]

F(x̄) is the loss of the first step after the models were averaged. A round that is waited for (d = 0) averages them
where the interval begins. An overlapped round averages them d steps later, so the first loss of the interval is one at
the rank's own model and does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.weights import has_data
from tacit.core.worker import ObservedLosses, Worker
from tacit.errors import MisplacedCall
from tacit.strategies.local_sgd.periods import Period


@dataclass
class Interval:
    """The steps since the latest round started."""

    weight: float = 0.0  # sum over the steps
    loss: float | None = None  # mini-batch loss of the first step after the latest averaging; None: no such step yet
    is_averaged: bool = True  # whether the next step starts from the averaged model

    def observe(self, worker: Worker, period: Period) -> None:
        """Add the worker's steps since the previous call; raise where ``period`` needs a loss that was not observed."""
        seen = worker.take_observed()
        if period.needs_loss and self._lacks_loss(seen):
            raise MisplacedCall(
                f"{period} needs the loss; call session.observe(loss) in every step of the training loop, "
                f"before optimizer.step()."
            )
        if seen.steps and self.is_averaged:
            self.loss, self.is_averaged = seen.first_loss, False
        self.weight += seen.weight

    def _lacks_loss(self, seen: ObservedLosses) -> bool:
        """Return whether ``seen`` has data and starts from the averaged model, but has no first loss."""
        return self.is_averaged and seen.first_loss is None and has_data(seen.weight, seen.steps)

    def statistics(self, period: float, rate: float) -> dict[str, float]:
        """Return what a round reports of these steps."""
        return {"period": period, "rate": rate, "loss": self.loss or 0.0, "has_loss": float(self.loss is not None)}
