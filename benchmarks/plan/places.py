"""Where plans are confirmed: hosts and networks, losses to reach, and the strategies of equal seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.fidelity import cells
from benchmarks.fidelity.cells import METHODS, SLEEP_S
from tacit.strategies import Strategy

CALM, NOISY, SORTED = "mlp", "mlp, batch 8", "mlp, sorted"
"""Batches of 32 and of 8 samples. With 32, more workers need hardly fewer steps; with 8, one needs twice as many. Sorted:
batches of 32, and each worker has the samples of some classes only."""
_WORDS: Final = {CALM: ["batch 32"], SORTED: ["sorted data"]}
EVALUATE_EVERY: Final = 5
SEEDS, OTHER_SEEDS = (0, 1, 2), (3, 4, 5)
JUDGING_SEEDS: Final = tuple(range(3, 15))
"""Seeds of the real runs that judge a recommendation; the plan has simulated none of them. Times of two seeds differ by
10 %, so a mean over 12 seeds is known to about 3 %."""


@dataclass(frozen=True)
class Place(cells.Place):
    """A place of the fidelity benchmark whose name also tells the data, steps of another length, and the optimizer."""

    model: str = NOISY
    momentum: float = 0.0

    def __str__(self) -> str:
        words = [super().__str__(), *_WORDS.get(self.model, [])]
        words += [f"steps of {1e3 * self.sleep_s:.0f} ms"] * (self.sleep_s != SLEEP_S)
        return ", ".join([*words, *[f"momentum {self.momentum:g}"] * (self.momentum > 0)])

    def of_fastest(self, workers: int) -> Place:
        """Return the place in which only the fastest hosts take part."""
        return self if workers == self.hosts else replace(self, hosts=workers, slow=False)


@dataclass(frozen=True)
class Goal:
    """A place and a loss to reach there. answer: "", or what a plan should recommend, as a sentence has it."""

    place: Place
    loss: float
    answer: str = ""

    def __str__(self) -> str:
        return f"{self.place}, loss {self.loss:g}"


STAY, LEAVE_OUT, ALONE = "stay with DDP", "leave the slow host out", "one machine alone"

TWO_100: Final = Place(2, "100 Mbit/s")
FOUR_1000, FOUR_100, FOUR_20 = (Place(4, network) for network in ("1 Gbit/s", "100 Mbit/s", "20 Mbit/s"))
SLOW_1000, SLOW_100 = (Place(4, network, slow=True) for network in ("1 Gbit/s", "100 Mbit/s"))
CALM_20: Final = Place(4, "20 Mbit/s", model=CALM)
CALM_TWO_20: Final = Place(2, "20 Mbit/s", model=CALM)
SLOW_TWO_20: Final = Place(2, "20 Mbit/s", slow=True, model=CALM)
LONG_1000: Final = Place(2, "1 Gbit/s", sleep_s=0.1)
SORTED_1000: Final = Place(4, "1 Gbit/s", sleep_s=0.1, model=SORTED, momentum=0.9)
QUICK: Final = Place(2, "loopback", model="small", sleep_s=0.005, is_quick=True)

EQUAL_SEEDS: Final = (TWO_100, FOUR_1000, FOUR_100, FOUR_20, SLOW_1000, SLOW_100)
PROBED: Final = (*EQUAL_SEEDS, CALM_20, CALM_TWO_20, SLOW_TWO_20, LONG_1000, SORTED_1000)
EQUAL_LOSS: Final = 0.15
"""It takes 60 to 75 steps with four workers."""
OTHERS_AT: Final = (TWO_100, FOUR_100, SLOW_1000)
OTHER_METHODS: Final = (cells.ALL_REDUCE, cells.LOCAL_8, cells.OVERLAPPED, cells.QSGD)

GOALS: Final = (
    *(Goal(place, loss) for place in (TWO_100, FOUR_1000, FOUR_100, FOUR_20) for loss in (0.15, 0.1)),
    Goal(SLOW_1000, 0.15, LEAVE_OUT),
    Goal(SLOW_100, 0.15, LEAVE_OUT),
    Goal(CALM_20, 0.1),
    Goal(CALM_TWO_20, 0.1),
    Goal(SLOW_TWO_20, 0.1, ALONE),
    Goal(LONG_1000, 0.15, STAY),
    Goal(SORTED_1000, 0.01, STAY),
)
ROUNDS: Final[dict[str, Strategy[Any]]] = {
    name: METHODS[name].strategy
    for name in (cells.ALL_REDUCE, cells.LOCAL_8, cells.LOCAL_32, cells.OVERLAPPED, cells.EF21, cells.QSGD)
}
"""The strategies of equal seeds; all have rounds."""
QUICK_LOSS: Final = 0.3
