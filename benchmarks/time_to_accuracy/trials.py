"""One trial of the search: a simulated run, up to the first evaluation at the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import tacit
from benchmarks.time_to_accuracy.methods import every_of, is_timed
from benchmarks.time_to_accuracy.places import SEARCH_SEED, Spot
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import MOMENTUM, TASKS, HeldOutError
from tacit.errors import RunError
from tacit.registry import parse
from tacit.strategies import Strategy

EVERY_S: Final = 0.4
"""Seconds between two evaluations of a method whose ranks do not wait for each other."""
_UPDATES: Final = 4
"""Updates of a server, at most, for each step that other methods may take: with K = 1 an update has one batch."""


@dataclass(frozen=True)
class Trial:
    """What is simulated. cluster: None where the models do not depend on times."""

    task: str
    data: str
    strategy: str
    lr: float
    cluster: tacit.Cluster | None
    place: str

    @property
    def key(self) -> dict[str, Any]:
        return {"strategy": self.strategy, "lr": self.lr, "place": self.place}


def trial_of(setting: Setting, spot: Spot, strategy: Strategy[Any], lr: float, cluster: tacit.Cluster | None) -> Trial:
    """Return the trial of a strategy at a place: the same at all places if times do not matter."""
    place = "" if cluster is None else spot.key
    return Trial(setting.task.name, setting.data, str(strategy), lr, cluster, place)


def run_trial(trial: Trial, workers: int) -> dict[str, Any]:
    """Simulate a trial; return when it reached the target, or the accuracy that it reached."""
    torch.set_num_threads(1)
    task, strategy = TASKS[trial.task], parse(trial.strategy, "strategies")
    is_free = trial.cluster is None
    cluster = tacit.Cluster(workers=workers, compute=tacit.Constant(mean_s=1.0)) if is_free else trial.cluster
    every = (
        {"evaluate_every_s": EVERY_S * (task.sleep_s / 0.02)}
        if is_timed(strategy)
        else {"evaluate_every": every_of(task, strategy)}
    )
    try:
        run = tacit.simulate(
            HeldOutError(task=trial.task, data=trial.data),
            strategy,
            cluster=cluster,
            steps=task.search_steps * (_UPDATES if strategy.has_server else 1),
            seed=SEARCH_SEED,
            lr=trial.lr,
            momentum=MOMENTUM,
            until_loss=1.0 - task.target + 1e-9,
            **every,
        )
    except RunError as error:
        return {**trial.key, "steps": None, "time_s": None, "best": None, "failed": str(error)[:200]}
    rows = [row for row in run.history if row["loss"] is not None]
    best = min(rows, key=lambda row: row["loss"])
    reached = best["loss"] <= 1.0 - task.target + 1e-9
    return {
        **trial.key,
        "steps": best["step"] if reached else None,
        "time_s": best["time_s"] if reached and not is_free else None,
        "best": round(1.0 - best["loss"], 4),
    }
