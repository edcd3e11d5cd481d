"""Where the methods run, which of them, how often, and for how long at most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fidelity.cells import Place
from benchmarks.time_to_accuracy.methods import ALL_REDUCE, DDP, LUPA, METHODS, PLAN, POST_LOCAL, POWERSGD
from benchmarks.time_to_accuracy.tasks import Task

WORKERS: Final = 4
SEARCH_SEED: Final = 100
SEEDS: Final = (0, 1, 2)
CAP_S: Final = 180.0
"""Longest run."""
SHORT_S: Final = 45.0
"""Run of a method that is predicted to need more than the longest one: its accuracy by then is reported."""
OFTEN_S: Final = 45.0
"""Methods that are predicted to need more have one seed; their steps have a constant pace, which the results show."""
START_S: Final = 4.0
"""About what a run takes besides its steps: the model, connections, and the evaluations after it."""
_LOOPBACK: Final = (DDP, ALL_REDUCE, "DDP, bf16 hook", POWERSGD, POST_LOCAL, LUPA, "tacit EF21", PLAN)


@dataclass(frozen=True)
class Spot:
    """A place and the methods that are compared there."""

    key: str
    network: str
    slow: bool
    methods: tuple[str, ...]
    often: tuple[str, ...] = ()  # methods with three seeds, however long they take

    def place(self, task: Task, workers: int = 4, is_quick: bool = False) -> Place:
        """Return the hosts. Fewer workers: a plan leaves the slow one out."""
        is_slow = self.slow and workers == WORKERS
        place = Place(workers, self.network, slow=is_slow, model=task.name, sleep_s=task.sleep_s)
        return replace(place, is_quick=True) if is_quick else place


_ALL: Final = (*METHODS, PLAN)
_NOT_SLOW: Final = (ALL_REDUCE, "DDP, bf16 hook", "tacit ADPSGD", "tacit DiLoCo")
"""Left out where one worker is slow, to save time: at an equal network without it they are measured."""
SPOTS: Final = {
    spot.key: spot
    for spot in (
        Spot("loopback", "loopback", False, _LOOPBACK),
        Spot("1gbit", "1 Gbit/s", False, _ALL),
        Spot("100mbit", "100 Mbit/s", False, _ALL, often=(DDP,)),
        Spot("slow", "100 Mbit/s", True, tuple(name for name in _ALL if name not in _NOT_SLOW)),
    )
}
QUICK: Final = Spot(
    "quick", "loopback", False, (DDP, POST_LOCAL, LUPA, "tacit KBatchAsync, local steps", "tacit SwarmSGD")
)
TITLES: Final = {
    "loopback": "loopback",
    "1gbit": "1 Gbit/s",
    "100mbit": "100 Mbit/s",
    "slow": "100 Mbit/s, one worker three times slower",
    "quick": "quick",
}
