"""What a plan predicts for the run of its best row: the numbers that drift rule, progress line and report compare.

Times of rounds are taken from a timing-only simulation, in the way in which rank 0 takes them in a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tacit.cluster.cluster import Cluster
from tacit.planning.pace import Pace, mean_pace, paces, period_of, steps_for
from tacit.planning.results import Trial
from tacit.record.run import Run
from tacit.record.smoothing import LEAST
from tacit.record.trace import COMPUTE, EXCHANGE, HOOK
from tacit.session.plan_watch.drift import WINDOW, RoundTimes
from tacit.simulation import simulate
from tacit.strategies import DDP, Strategy

if TYPE_CHECKING:
    from tacit.planning.plan import Plan, Row

_ROUNDS: Final = 8 * WINDOW
"""Rounds of the simulation, if they take at most ``_MOST_STEPS`` steps."""
_FEWEST_ROUNDS: Final = 2 * WINDOW
_MOST_STEPS: Final = 400
_DIGITS: Final = 6


def prediction_of(plan: Plan) -> dict[str, Any]:
    """Return the prediction for a run of the best row with tacit.

    DDP on real processes is ``AllReduce``, whose rounds do not overlap with the backward pass; so are those predicted.
    """
    row = plan.best
    strategy, cluster = as_run(row.strategy), plan.profile.of_ranks(row.ranks).cluster()
    run = _simulated(plan, strategy, cluster)
    # Of a row of DDP on several workers the pace differs by the overlap alone: it has the same draws of delays.
    own = mean_pace(paces(plan.workload, strategy, cluster)) if runs_otherwise(row) else row.pace
    times_s = row.shortest_s
    factor = own.step_s / row.pace.step_s
    found: dict[str, Any] = {
        "step_s": own.step_s,
        "bytes_per_step": own.bytes_per_step,
        "communication": own.communication,
        **_parts(own),
    }
    if plan.target_loss is not None:
        found["target_loss"] = plan.target_loss
    if plan.within_s is not None:
        found["within_s"] = plan.within_s
        if row.outcome is not None:
            found |= {f"loss_{name}": getattr(row.outcome, name) for name in ("median", "low", "high")}
    if "script" in plan.settings:  # its losses are running means of those that it observes
        found["window_batches"] = LEAST * plan.profile.workers
    if times_s is not None:
        found |= {f"time_{name}_s": factor * getattr(times_s, name) for name in ("median", "low", "high")}
        found["widened"] = times_s.widened
    trial = _median_trial(plan, row)
    if trial is not None and trial.steps is not None:
        found["steps"] = trial.steps
        found["curve"] = _curve(trial, own.step_s)
    if row.memory_bytes is not None:
        found["memory_bytes"] = row.memory_bytes
    times = round_times(run)
    if len(times) >= WINDOW:
        found["rounds"] = _rounds(times)
    found["parameters"], found["dtype"] = run.record["parameters"], run.record["dtype"]
    found["alternatives"] = [_alternative(one) for one in plan.rows]
    rounded: dict[str, Any] = _rounded(found)
    return rounded


def as_run(strategy: Strategy[Any]) -> Strategy[Any]:
    """Return the strategy as real processes run it: DDP without overlap."""
    return replace(strategy, backward=0.0) if isinstance(strategy, DDP) else strategy


def runs_otherwise(row: Row) -> bool:
    """Whether real processes take other times for a row than the row has: those of DDP, which has rounds to overlap."""
    return len(row.ranks) > 1 and as_run(row.strategy) != row.strategy


def _simulated(plan: Plan, strategy: Strategy[Any], cluster: Cluster) -> Run:
    period = period_of(strategy)
    rounds = max(_FEWEST_ROUNDS, min(_ROUNDS, _MOST_STEPS // period))
    steps = max(steps_for(strategy), rounds * period)
    return simulate(plan.workload, strategy, cluster=cluster, steps=steps, timing_only=True, evaluate_every=steps)


def _parts(own: Pace) -> dict[str, float]:
    """Return the seconds of a step by what they are spent on; they add up to ``step_s``."""
    spent = {name: own.step_s * getattr(own, name) for name in ("computing", "hooks", "waiting")}
    return {**{f"{name}_s": value for name, value in spent.items()}, "wire_s": own.step_s - sum(spent.values())}


def _median_trial(plan: Plan, row: Row) -> Trial | None:
    """Return the trial of the middle seed at the learning rate to which the row's time belongs."""
    lr = row.best_lr if row.is_tuned else plan.lr
    reached = [one for one in row.trials if one.lr == lr and one.steps is not None]
    reached.sort(key=lambda one: one.best_loss if plan.target_loss is None else one.steps or 0)
    return reached[len(reached) // 2] if reached else None


def _curve(trial: Trial, step_s: float) -> dict[str, list[float]]:
    """Return the predicted loss by step and time."""
    return {
        "step": [step for step, _, _ in trial.curve],
        "time_s": [step * step_s if time_s is None else time_s for step, time_s, _ in trial.curve],
        "loss": [loss for _, _, loss in trial.curve],
    }


def _alternative(row: Row) -> dict[str, Any]:
    time_s = row.shortest_s
    return {
        "strategy": str(row.strategy),
        "ranks": list(row.ranks),
        "step_s": row.pace.step_s,
        "time_s": None if time_s is None else time_s.median,
    }


def round_times(run: Run) -> list[RoundTimes]:
    """Return the times between rounds of all ranks, as rank 0 sees them; empty for a run without rounds."""
    ranks, ends_s = run.trace.unordered(("rank", "time_s"), EXCHANGE)
    bounds_s = np.unique(ends_s[ranks == 0])
    computed = [_ends_and_sums(run, COMPUTE, rank) for rank in range(run.workers)]
    worked = [_ends_and_sums(run, HOOK, rank) for rank in range(run.workers)]
    found, since_s = [], 0.0
    for bound_s in bounds_s.tolist():
        steps = _count(computed[0][0], since_s, bound_s)
        if not steps:  # a second collective of the same round
            continue
        found.append(
            RoundTimes(
                steps,
                bound_s - since_s,
                tuple(_seconds(one, since_s, bound_s) for one in computed),
                tuple(_seconds(one, since_s, bound_s) for one in worked),
            )
        )
        since_s = bound_s
    return found


Sums = tuple[np.ndarray, np.ndarray]
"""The ends of a rank's events of one kind, and the seconds of all events up to each."""


def _ends_and_sums(run: Run, kind: str, rank: int) -> Sums:
    ranks, starts_s, ends_s = run.trace.unordered(("rank", "start_s", "time_s"), kind)
    order = np.argsort(ends_s[ranks == rank], kind="stable")
    ends, lengths = ends_s[ranks == rank][order], (ends_s - starts_s)[ranks == rank][order]
    return ends, np.concatenate(([0.0], np.cumsum(lengths)))


def _count(ends_s: np.ndarray, since_s: float, until_s: float) -> int:
    first, last = np.searchsorted(ends_s, (since_s, until_s), "right")
    return int(last - first)


def _seconds(of: Sums, since_s: float, until_s: float) -> float:
    first, last = np.searchsorted(of[0], (since_s, until_s), "right")
    return float(of[1][last] - of[1][first])


def _rounds(times: Sequence[RoundTimes]) -> dict[str, Any]:
    """Return the planned times of rounds, as ranges of the medians of five."""
    return {
        "period": float(np.mean([one.steps for one in times])),
        "round_s": float(np.mean([one.elapsed_s for one in times])),
        "wire_s": _range([one.wire_s for one in times]),
        "compute_s": [
            _range([one.compute_s[rank] / one.steps for one in times]) for rank in range(len(times[0].compute_s))
        ],
    }


def _range(values: Sequence[float]) -> list[float]:
    """Return the smallest median of five values in a row, the median of all, and the largest median of five."""
    medians = [median(values[place : place + WINDOW]) for place in range(len(values) - WINDOW + 1)]
    return [min(medians), median(values), max(medians)]


def _rounded(value: Any) -> Any:
    """Return a table with six digits of each number."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
