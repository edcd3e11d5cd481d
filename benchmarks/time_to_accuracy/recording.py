"""The real runs: which ones are needed, how long they are, and a row for each of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import Failed
from benchmarks.time_to_accuracy.crews import PATIENCE_S, Crews, stamp
from benchmarks.time_to_accuracy.evaluating import evaluated
from benchmarks.time_to_accuracy.methods import every_of, is_timed, keeps_apart
from benchmarks.time_to_accuracy.places import CAP_S, OFTEN_S, SHORT_S, START_S
from benchmarks.time_to_accuracy.ranks.common import Rule
from benchmarks.time_to_accuracy.search import Choice
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.trials import EVERY_S

_LONGER, _ASYNCHRONOUS = 1.15, 1.5
"""Runs are longer than predicted: other seeds need more steps, and models that depend on time vary more."""
_AGAIN = 1.8
"""How much longer a run is repeated that ended below the target."""
_MARGIN = 2  # evaluations after the predicted one


@dataclass(frozen=True)
class Needed:
    """A run to make. length_s: predicted; steps: for methods whose ranks do not wait for others, of the fastest."""

    choice: Choice
    seed: int
    steps: int
    length_s: float

    @property
    def key(self) -> dict[str, Any]:
        return {**self.choice.key, "seed": self.seed}

    def __str__(self) -> str:
        value = "" if self.choice.value is None else f", {self.choice.value:g}"
        return f"{self.choice.spot.key}: {self.choice.method}, lr {self.choice.lr:g}{value}, seed {self.seed}"


def needed(setting: Setting, choices: list[Choice]) -> list[Needed]:
    """Return the missing runs, place by place, the runs of one environment after each other."""
    found = []
    for choice in choices:
        for seed in _seeds(setting, choice):
            run = _run(setting, choice, seed)
            row = setting.rows.find(**run.key)
            if row is None:
                found.append(run)
            elif row["reached"] is None and not row["is_last"] and not row.get("failed"):
                found.append(_longer(setting, run, row))
    order = [spot.key for spot in setting.spots]
    return sorted(found, key=lambda run: (order.index(run.choice.spot.key), run.choice.workers, run.choice.crew))


def _seeds(setting: Setting, choice: Choice) -> tuple[int, ...]:
    is_often = choice.time_s is not None and choice.time_s <= OFTEN_S
    return setting.seeds if is_often or choice.method in choice.spot.often else setting.seeds[:1]


def _run(setting: Setting, choice: Choice, seed: int) -> Needed:
    task, every = setting.task, every_of(setting.task, choice.strategy)
    if choice.time_s is None or choice.steps is None or choice.time_s > CAP_S:
        length_s = SHORT_S
        steps = max(every, math.floor(length_s / choice.step_s / every) * every)
        return Needed(choice, seed, min(steps, task.search_steps * 4), length_s)
    longer = _ASYNCHRONOUS if choice.strategy.depends_on_time else _LONGER
    steps = math.ceil(longer * choice.steps / every) * every + _MARGIN * every
    return _capped(choice, seed, steps, every)


def _longer(setting: Setting, run: Needed, row: dict[str, Any]) -> Needed:
    every = every_of(setting.task, run.choice.strategy)
    return _capped(run.choice, run.seed, math.ceil(_AGAIN * row["asked"] / every) * every, every)


def _capped(choice: Choice, seed: int, steps: int, every: int) -> Needed:
    """Return a run of so many steps, or of those that the longest time allows."""
    step_s = choice.step_s
    if is_timed(choice.strategy) and choice.time_s is not None and choice.steps:
        step_s = choice.time_s / choice.steps  # of the slowest rank, whose steps count
    most = max(every, math.floor(CAP_S / step_s / every) * every)
    return Needed(choice, seed, min(steps, most), min(steps, most) * step_s)


def cost_s(runs: list[Needed]) -> float:
    """Return about how long runs take."""
    return sum(run.length_s + START_S for run in runs)


def record(setting: Setting, runs: list[Needed]) -> None:
    """Make runs until the time is over; one that fails leaves its reason, and the others go on."""
    by_spot: dict[str, list[Needed]] = {}
    for run in runs:
        by_spot.setdefault(run.choice.spot.key, []).append(run)
    for own in by_spot.values():
        with Crews(setting, own[0].choice.spot) as crews:
            for run in own:
                if time.monotonic() + run.length_s > setting.ends_s:
                    continue
                _record(setting, crews, run)


def _record(setting: Setting, crews: Crews, run: Needed) -> None:
    choice, begun_s, noted = run.choice, time.perf_counter(), stamp()
    row = {**run.key, "runner": choice.runner, "crew": choice.crew, "value": choice.value, "asked": run.steps, **noted}
    try:
        ranks = crews.run(
            choice.crew,
            choice.workers,
            run.seed,
            _rule(setting, run),
            1.6 * run.length_s + PATIENCE_S,
            method=choice.runner,
            value=choice.value,
            strategy=str(choice.strategy) if choice.runner == "tacit" else "",
            lr=choice.lr,
            folder=None,
        )
    except Failed as failed:
        setting.failures[str(run)] = str(failed)
        setting.rows.add({**row, "failed": str(failed), "reached": None, "is_last": True})
        print(f"  {run}: FAILED: {failed}", flush=True)
        return
    trained_s = time.perf_counter() - begun_s
    found = evaluated(setting, ranks, is_shared=choice.spot.network == "loopback", is_timed=is_timed(choice.strategy))
    is_last = run.length_s >= 0.95 * CAP_S or choice.time_s is None or choice.time_s > CAP_S
    is_last = is_last or setting.rows.find(**run.key) is not None  # a run is repeated once
    row |= {**found, "is_last": is_last, "priority": crews.priority, "trained_s": round(trained_s, 1)}
    row["seconds"] = round(time.perf_counter() - begun_s, 1)
    setting.rows.add(row)
    reached = row["reached"]
    said = f"{reached['time_s']:.2f} s, {reached['step']} steps" if reached else f"not reached, best {row['best']:.4f}"
    print(f"  {run}: {said}; {row['pace_ms']:.1f} ms a step, {row['seconds']} s, load {row['load']}", flush=True)


def _rule(setting: Setting, run: Needed) -> Rule:
    strategy, task = run.choice.strategy, setting.task
    every = every_of(task, strategy)
    if not is_timed(strategy):
        return Rule(steps=run.steps, every=every, all_ranks=keeps_apart(strategy))
    every_s = EVERY_S * task.sleep_s / 0.02
    return Rule(steps=run.steps, every=every, every_s=every_s, deadline_s=run.length_s, all_ranks=True)
