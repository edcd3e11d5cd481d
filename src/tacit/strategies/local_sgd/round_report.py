"""The statistics that travel with the models of a round, by name.

    period             τ modulo 64, to check that all ranks have the same
    rate               γ of the rank's last step
    loss, has_loss     the rank's loss at the averaged model and 1; 0 and 0 where the rank has none
    squared_distance   ‖x_i − r‖², r being the last common model

A report is a few numbers behind the model's, in this order and in the model's dtype. Only those that a run needs
travel. The means over ranks come back in the same order. Times of ranks, if they travel, follow (``rank_times``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tacit.core.worker import Worker
from tacit.errors import Disagreement, nearest, require

STATISTICS: Final = ("period", "rate", "loss", "has_loss", "squared_distance")
"""All statistics, in their order on the wire."""

_KNOWN: Final = frozenset(STATISTICS)
_MODULUS: Final = 64
"""Small whole numbers survive a float32 sum exactly."""


@dataclass(frozen=True)
class RoundReport:
    """Which statistics travel with a round. Packs this rank's values and unpacks the means over ranks."""

    names: tuple[str, ...]  # in the order of STATISTICS
    times: bool = False  # whether the times of each rank travel as well

    def __post_init__(self) -> None:
        for name in self.names:
            _require_known(name)
        require(
            self.names == tuple(name for name in STATISTICS if name in self.names),
            f"names={self.names} must be in the order {', '.join(STATISTICS)}, each at most once.",
        )

    @classmethod
    def of(
        cls, *, rate: bool = False, loss: bool = False, squared_distance: bool = False, times: bool = False
    ) -> RoundReport:
        """Return the report of a run that needs these statistics; the period always travels."""
        needed = {"period": True, "rate": rate, "loss": loss, "has_loss": loss, "squared_distance": squared_distance}
        return cls(tuple(name for name in STATISTICS if needed[name]), times)

    def pack(self, statistics: Mapping[str, float]) -> list[float]:
        """Return the numbers to send. Statistics that do not travel are left out."""
        if not statistics.keys() <= _KNOWN:
            for name in statistics:
                _require_known(name)
        try:
            return [statistics[name] for name in self.names]
        except KeyError:
            missing = [name for name in self.names if name not in statistics]
            have = f"statistics={sorted(statistics)} must hold {', '.join(self.names)}"
            raise ValueError(f"{have}; add {missing}.") from None

    def unpack(self, numbers: Sequence[float]) -> dict[str, float]:
        """Return the statistics that ``numbers`` hold."""
        if len(numbers) != len(self.names):
            raise ValueError(f"{len(numbers)} numbers came; a report has {', '.join(self.names)}.")
        return dict(zip(self.names, numbers, strict=True))


def period_on_wire(period: int) -> float:
    """Return the value that stands for ``period`` in a report."""
    return float(period % _MODULUS)


def check_period(worker: Worker, period: int, mean: float) -> None:
    """Raise ``Disagreement`` unless ``mean``, the mean of all ranks' reports, is this rank's ``period``."""
    if abs(mean - period_on_wire(period)) > 0.25 / worker.size:
        raise Disagreement("period", f"{period} (mod {_MODULUS})", mean, worker.rank)


def mean_loss(statistics: Mapping[str, float]) -> float | None:
    """Return the mean loss over ranks that have one; None where no rank has one, or losses do not travel."""
    share = statistics.get("has_loss", 0.0)
    return statistics["loss"] / share if share > 0 else None


def _require_known(name: str) -> None:
    if name not in STATISTICS:
        raise ValueError(f"statistic={name!r} is unknown{nearest(name, STATISTICS)}")
