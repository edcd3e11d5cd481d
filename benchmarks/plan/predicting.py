"""Plans of places, from their probes."""

from __future__ import annotations

import hashlib
import pickle
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import tacit
from benchmarks.fidelity.workloads import LEARNING_RATE, workload
from benchmarks.plan.places import EVALUATE_EVERY, SEEDS, Goal, Place
from benchmarks.plan.probing import profile_of
from tacit.compare import LossCurves
from tacit.planning.plan import Plan, Row
from tacit.strategies import Strategy

STEPS = 400
"""Longest simulated training."""


def plan_of(goal: Goal, root: Path, **options: Any) -> Plan:
    """Return the plan of a goal, at the learning rate of the real runs.

    Curves are kept for other networks, and plans until the source of tacit changes: calls that only continue real runs
    need not plan again.
    """
    profile = profile_of(goal.place, root)
    settings = {
        "target_loss": goal.loss,
        "steps": STEPS,
        "seeds": SEEDS,
        "lr": LEARNING_RATE,
        "momentum": goal.place.momentum,
        "tune": False,
        "evaluate_every": EVALUATE_EVERY,
        **options,
    }
    digest = hashlib.sha256(f"{goal.place.model} {profile.table()} {settings} {_source()}".encode()).hexdigest()[:16]
    file = root / "plans" / f"{digest}.pickle"
    if not file.is_file():
        made = tacit.plan(profile, workload(goal.place.model), cache=str(root / "curves"), **settings)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(made))
        print(f"    planned {goal}", flush=True)
    found: Plan = pickle.loads(file.read_bytes())
    return found


@cache
def _source() -> str:
    """Return the digest of the source of tacit."""
    texts = (path.read_bytes() for path in sorted(Path(tacit.__file__).parent.rglob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def planned_row(place: Place, loss: float, strategy: Strategy[Any], root: Path) -> Row:
    """Return the row of one strategy, with all seeds: a user's own strategy stays in the plan to the end."""
    plan = plan_of(Goal(place, loss), root, own=strategy, strategies=[strategy], jobs=1)
    return next(row for row in plan.rows if str(row.strategy) == str(strategy) and len(row.ranks) == place.hosts)


def seconds_of(row: Row, seed: int) -> tuple[int, float] | None:
    """Return steps and seconds to the target that a row predicts for one seed; None: it does not reach it."""
    trial = next(trial for trial in row.trials if trial.seed == seed)
    times_s = trial.times_s([row.pace])
    return None if trial.steps is None or not times_s else (trial.steps, statistics.fmean(times_s))


def steps_to(place: Place, loss: float, strategy: Strategy[Any], seed: int, root: Path) -> int | None:
    """Return the steps to a loss of a strategy with rounds, simulated with the seed of a real run."""
    curve = LossCurves(root / "curves").curve(
        workload(place.model),
        strategy,
        workers=place.hosts,
        steps=STEPS,
        seed=seed,
        lr=LEARNING_RATE,
        momentum=place.momentum,
        evaluate_every=EVALUATE_EVERY,
        until_loss=loss,
    )
    return curve.first_step_reaching(loss)
