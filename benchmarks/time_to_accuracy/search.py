"""The search that every method gets: six trials, and the choice of one of them for each place.

First all learning rates with the first value of the method's parameter, then the other values at the best rate. A trial
is judged by its predicted time to the target: the steps that it needs times the pace of the place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.time_to_accuracy.methods import METHODS, PLAN, Method
from benchmarks.time_to_accuracy.paces import is_calibrated, pace_of, profile_of
from benchmarks.time_to_accuracy.places import Spot
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.trials import Trial, run_trial, trial_of
from tacit.planning.pace import Pace
from tacit.registry import parse
from tacit.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a method runs with at a place, and what is predicted of it."""

    spot: Spot
    method: str
    crew: str
    runner: str
    is_ours: bool
    strategy: Strategy[Any]
    lr: float
    value: float | None
    steps: int | None  # to the target; None: no trial reached it
    time_s: float | None
    step_s: float
    tried: int
    workers: int = 4
    note: str = ""

    @property
    def key(self) -> dict[str, Any]:
        return {"place": self.spot.key, "method": self.method, "strategy": str(self.strategy), "lr": self.lr}


def searched(setting: Setting) -> None:
    """Simulate the missing trials of all methods: rates first, then the other values."""
    for stage in (_rates, _values):
        wanted = {repr(trial.key): trial for spot, method in _pairs(setting) for trial in stage(setting, spot, method)}
        missing = [trial for trial in wanted.values() if setting.trials.find(**trial.key) is None]
        _simulate(setting, missing)


def _pairs(setting: Setting) -> list[tuple[Spot, Method]]:
    """Return the places and methods to search for. Only models that depend on times need the place's calibration."""
    pairs = [(spot, METHODS[name]) for spot in setting.spots for name in spot.methods if name in METHODS]
    return [(spot, method) for spot, method in pairs if not _is_timed(method) or is_calibrated(setting, spot)]


def _is_timed(method: Method) -> bool:
    return method.strategy(method.first_value).depends_on_time


def _trial(setting: Setting, spot: Spot, method: Method, lr: float, value: float | None) -> Trial:
    cluster = profile_of(setting, spot).cluster() if _is_timed(method) else None
    return trial_of(setting, spot, method.strategy(value), lr, cluster)


def _rates(setting: Setting, spot: Spot, method: Method) -> list[Trial]:
    return [_trial(setting, spot, method, lr, method.first_value) for lr in method.rates(setting.task)]


def _values(setting: Setting, spot: Spot, method: Method) -> list[Trial]:
    found = [setting.trials.find(**trial.key) for trial in _rates(setting, spot, method)]
    known = [row for row in found if row is not None]
    if not known:
        return []
    lr = min(known, key=_score)["lr"]
    return [_trial(setting, spot, method, lr, value) for value in method.other_values(setting.task)]


def _score(row: dict[str, Any]) -> tuple[float, float]:
    """Return what is smaller for a better rate: time or steps to the target, or the error that was reached instead."""
    needed = row["time_s"] if row["time_s"] is not None else row["steps"]
    return (math.inf if needed is None else needed), 1.0 - (row["best"] or 0.0)


def _simulate(setting: Setting, missing: Sequence[Trial]) -> None:
    workers = setting.workers
    if not missing or setting.is_over:
        return
    print(f"  {len(missing)} trials to simulate", flush=True)
    if setting.jobs == 1:
        for trial in missing:
            if not setting.is_over:
                _add(setting, run_trial(trial, workers))
        return
    with ProcessPoolExecutor(setting.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_trial, trial, workers) for trial in missing]
        for future in as_completed(futures):
            _add(setting, future.result())
            if setting.is_over:
                pool.shutdown(cancel_futures=True)
                return


def _add(setting: Setting, row: dict[str, Any]) -> None:
    setting.trials.add(row)
    needed = f"{row['steps']} steps" if row["steps"] is not None else f"not reached, best {row['best']}"
    print(f"    {row['strategy']}, lr {row['lr']:g}{', ' + row['place'] if row['place'] else ''}: {needed}", flush=True)


def choices(setting: Setting) -> list[Choice]:
    """Return what is chosen for each method at each place, as far as all of its trials are known."""
    pairs = [(spot, method) for spot, method in _pairs(setting) if is_calibrated(setting, spot)]
    found = [choice for spot, method in pairs if (choice := _choice(setting, spot, method)) is not None]
    return [*found, *(one for spot in setting.spots if (one := planned(setting, spot)) is not None)]


def _choice(setting: Setting, spot: Spot, method: Method) -> Choice | None:
    pairs = [(trial, method.first_value) for trial in _rates(setting, spot, method)]
    pairs += list(zip(_values(setting, spot, method), method.other_values(setting.task), strict=False))
    wanted = len(method.rates(setting.task)) + len(method.other_values(setting.task))
    rows = [(setting.trials.find(**trial.key), trial, value) for trial, value in pairs]
    if any(row is None for row, _, _ in rows) or len(rows) < wanted:
        return None
    timed = [(_time_s(setting, spot, trial, row or {}), row or {}, trial, value) for row, trial, value in rows]
    time_s, row, trial, value = min(timed, key=lambda one: (one[0], 1.0 - (one[1]["best"] or 0.0)))
    strategy = parse(trial.strategy, "strategies")
    return Choice(
        spot=spot,
        method=method.name,
        crew=method.crew,
        runner=method.runner,
        is_ours=method.is_ours,
        strategy=strategy,
        lr=row["lr"],
        value=value,
        steps=row["steps"],
        time_s=None if time_s == math.inf else time_s,
        step_s=_pace(setting, spot, strategy).step_s,
        tried=len(rows),
        workers=setting.workers,
    )


def _pace(setting: Setting, spot: Spot, strategy: Strategy[Any]) -> Pace:
    return pace_of(setting, spot, strategy)


def _time_s(setting: Setting, spot: Spot, trial: Trial, row: dict[str, Any]) -> float:
    """Return the predicted time to the target, infinite if the trial did not reach it."""
    if row["steps"] is None:
        return math.inf
    if row["time_s"] is not None:
        return float(row["time_s"])
    return _pace(setting, spot, parse(trial.strategy, "strategies")).seconds(row["steps"])


def planned(setting: Setting, spot: Spot) -> Choice | None:
    """Return what ``tacit plan`` recommends at a place, if it was asked."""
    row = setting.plans.find(place=spot.key)
    if row is None:
        return None
    strategy = parse(row["strategy"], "strategies")
    is_ddp = row["strategy"].startswith("DDP")
    return Choice(
        spot=spot,
        method=PLAN,
        crew="tacit",
        runner="DDP" if is_ddp else "tacit",
        is_ours=True,
        strategy=strategy,
        lr=row["lr"],
        value=None,
        steps=row["steps"],
        time_s=row["time_s"],
        step_s=row["step_s"],
        tried=row["tried"],
        workers=row["workers"],
        note=f"{strategy} on {row['workers']} workers",
    )
