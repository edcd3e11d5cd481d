"""What every part of the benchmark reads: the task, the data, the folder, the command line's choices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.time_to_accuracy.kept import Rows
from benchmarks.time_to_accuracy.places import QUICK, SEEDS, SPOTS, WORKERS, Spot
from benchmarks.time_to_accuracy.tasks import HeldOutError, Task


@dataclass
class Setting:
    """One task, and how it is measured in this call."""

    task: Task
    data: str
    root: Path
    environments: Path
    only: tuple[str, ...] = ()
    jobs: int = 2
    ends_s: float = math.inf  # on the monotonic clock; no run and no simulation begins later
    is_quick: bool = False
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.root / self.task.name
        self.trials, self.plans, self.rows = (
            Rows(self.folder / f"{name}.jsonl") for name in ("trials", "plans", "rows")
        )

    @property
    def spots(self) -> list[Spot]:
        """The places of this call."""
        every = [QUICK] if self.is_quick else list(SPOTS.values())
        return [spot for spot in every if not self.only or spot.key in self.only]

    @property
    def seeds(self) -> tuple[int, ...]:
        return SEEDS[:1] if self.is_quick else SEEDS

    @property
    def workers(self) -> int:
        return 2 if self.is_quick else WORKERS

    @property
    def workload(self) -> HeldOutError:
        return HeldOutError(task=self.task.name, data=self.data)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s
