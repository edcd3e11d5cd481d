"""The settings of a simulated run as the content of run.toml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tacit.cluster.cluster import Cluster
from tacit.core.strategy import Strategy
from tacit.session.model.extra_state import MomentsEvery
from tacit.training.optimizers import Factory
from tacit.training.schedules import Schedule
from tacit.workloads.workload import Workload

ROWS: Final = 100
"""Approximate number of rows of a history without ``evaluate_every``."""


def configuration(
    workload: Workload,
    strategy: Strategy[Any],
    *,
    cluster: Cluster,
    steps: int,
    seed: int,
    optimizer: str | Factory,
    lr: float,
    momentum: float,
    weight_decay: float,
    schedule: Schedule | Callable[[int], float] | None,
    evaluate_every: int | None,
    engine: str,
    device: str | torch.device,
    timing_only: bool = False,
    evaluate_every_s: float | None = None,
    until_loss: float | None = None,
    optimizer_state: str = "keep",
    moments_every: MomentsEvery = None,
) -> dict[str, Any]:
    """Return the settings that reproduce a run, as ``tacit simulate --config`` reads them; functions by name only."""
    is_own = schedule is not None and not isinstance(schedule, Schedule)
    return {
        "workload": str(workload),
        "strategy": str(strategy),
        "seed": seed,
        "steps": steps,
        "optimizer": optimizer if isinstance(optimizer, str) else f"<{_name_of(optimizer)}>",
        **({"lr": lr, "momentum": momentum, "weight_decay": weight_decay} if isinstance(optimizer, str) else {}),
        **({} if optimizer_state == "keep" else {"optimizer_state": optimizer_state}),
        **({} if moments_every is None else {"moments_every": moments_every}),
        "schedule": None if schedule is None else f"<{_name_of(schedule)}>" if is_own else str(schedule),
        **_evaluations(steps, evaluate_every, evaluate_every_s),
        **({} if until_loss is None else {"until_loss": until_loss}),
        "engine": engine,
        "device": str(torch.device(device)),
        "threads": torch.get_num_threads(),
        "timing_only": timing_only,
        "cluster": cluster.table(),
    }


def default_interval(steps: int) -> int:
    """Return the steps between two evaluations of a run without ``evaluate_every``."""
    return max(1, steps // ROWS)


def _evaluations(steps: int, every: int | None, every_s: float | None) -> dict[str, Any]:
    return {"evaluate_every": every or default_interval(steps)} if every_s is None else {"evaluate_every_s": every_s}


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).replace("<", "").replace(">", "")
