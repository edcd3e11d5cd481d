"""Checks of the options of ``tacit plan``, with messages that name options."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.cli import units
from tacit.errors import require
from tacit.planning.planner import OBJECTIVES


def check_goal(target_loss: float | None, within: str | None, *, pilot: bool) -> None:
    """Raise unless the target loss, or the time instead of it, is one to plan for."""
    require(target_loss is None or within is None, "give --target-loss or --within, not both.")
    require(target_loss is None or math.isfinite(target_loss), f"--target-loss {target_loss} must be a finite number.")
    require(within is None or units.seconds(within) > 0, f"--within {within} must be positive; try 2h.")
    require(within is None or not pilot, "--pilot checks times to a loss; give --target-loss LOSS instead of --within.")


def check_objective(
    objective: str, target_loss: float | None, within: str | None, per_worker_hour: float, per_gigabyte: float
) -> None:
    """Raise unless the objective and its prices have what they need."""
    require(objective in OBJECTIVES, f"--objective {objective} must be one of {', '.join(OBJECTIVES)}.")
    for option, price in (("--price-per-worker-hour", per_worker_hour), ("--price-per-gigabyte", per_gigabyte)):
        require(0 <= price < math.inf, f"{option} {price:g} must be a price, at least 0.")
    if objective == "time":
        return
    instead = "add --target-loss LOSS" if within is None else "give --target-loss LOSS instead of --within"
    require(target_loss is not None, f"--objective {objective} compares what it takes to reach a loss; {instead}.")
    require(
        objective != "cost" or per_worker_hour > 0 or per_gigabyte > 0,
        "--objective cost needs --price-per-worker-hour or --price-per-gigabyte, or both.",
    )


def check_extent(budget: str, steps: int | None, seeds: Sequence[int] | None) -> None:
    """Raise unless the search has time, steps and different seeds."""
    require(units.seconds(budget) > 0, f"--budget {budget} must be positive; 5min are usually enough.")
    require(steps is None or steps >= 1, f"--steps {steps} must be at least 1.")
    require(
        seeds is None or len(set(seeds)) == len(seeds) >= 1, f"--seeds {list(seeds or ())} must be different seeds."
    )
