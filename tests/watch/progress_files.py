"""Progress files for tests, written by the code that runs write them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.record.progress import ProgressWriter, Totals

HEADER: dict[str, Any] = {
    "workers": 2,
    "model": "Linear",
    "strategy": "LocalSGD(period=Every(2))",
    "has_rounds": True,
    "has_server": False,
    "steps": 40,
    "seed": 0,
    "parameters": 99,
    "dtype": "float32",
    "predicted": {},
}


class Worker:
    """One worker whose totals a test sets."""

    def __init__(self, folder: Path, rank: int, **header: Any) -> None:
        self.totals = Totals(0, 0.0, 0.0, 0)
        self.writer = ProgressWriter(folder, {**HEADER, **header, "rank": rank}, lambda: self.totals)

    def work(self, until_s: float, steps: int, compute_s: float, hook_s: float, sent: int, **more: Any) -> None:
        """Take ``steps`` steps up to ``until_s``."""
        was = self.totals
        self.totals = Totals(was.steps + steps, was.compute_s + compute_s, was.hook_s + hook_s, was.sent_bytes + sent)
        self.writer.add(self.totals.steps, until_s, **more)


def two_workers(folder: Path, **header: Any) -> list[Worker]:
    """Write four seconds of a run in which worker 1 is slow: rank 0 waits for it half of the time."""
    workers = [Worker(folder, rank, **header) for rank in (0, 1)]
    workers[0].writer.evaluated(0, 0.0, {"loss": 2.0, "metric": None})
    for second in range(1, 5):
        workers[0].work(second, 5, 0.25, 0.05, 500, period=2.0)
        workers[1].work(second, 5, 0.75, 0.05, 500)
        workers[0].writer.evaluated(5 * second, second, {"loss": 2.0 / (1 + second)})
    return workers
