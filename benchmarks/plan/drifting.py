"""Part 5: drift. No alarm in the steady runs of the other parts, an alarm after a link has become slower."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.papers.common import table, target
from benchmarks.plan import falling_link
from benchmarks.plan.kept import kept
from benchmarks.plan.places import EQUAL_LOSS, PROBED, QUICK, Goal
from benchmarks.plan.predicting import plan_of
from benchmarks.plan.recording import RealRun, not_run
from tacit.planning.prediction import round_times
from tacit.session.plan_watch.drift import WINDOW, DriftRule, Expected

MOST_ROUNDS: Final = 15
_SKIPPED: Final = 2  # first rounds that the rule leaves out
Found = dict[str, Any]


def drift(chosen: argparse.Namespace) -> Found:
    """Steady runs raise no alarm; a link that falls from 100 to 30 Mbit/s does within 15 rounds."""
    steady = [one for one in map(_alarms, _steady_runs(chosen.folder)) if one is not None]
    falls = {} if chosen.quick else falling(chosen)
    missing = [strategy for strategy, one in falls.items() if one is None]
    found = {strategy: one for strategy, one in falls.items() if one is not None}
    rows = [
        (
            strategy,
            one["steady"]["rounds"],
            len(one["steady"]["drifts"]),
            one["slower"].get("rounds_until_told", "never"),
        )
        for strategy, one in found.items()
    ]
    return {
        "steady": steady,
        "falling": found,
        "targets": [*_steady_claims(steady, found), *_falling_claims(found), *not_run({}, missing)],
        "table": table(("strategy", "rounds of the steady run", "its alarms", "rounds until the fall is told"), rows),
        "setting": "the drift rule on the rounds of the real runs of parts 1 to 3, with what a plan from the probe of the "
        "same place predicts; and on two hosts, where `tacit probe`, a plan and two runs of `tacit train --plan` follow "
        "each other and the link of the second run falls from 100 to 30 Mbit/s. Rounds count from the first slow one.",
    }


def falling(chosen: argparse.Namespace) -> dict[str, Found | None]:
    """Return, for each strategy, the kept runs with a link that becomes slower; make them if there are none."""
    return {
        strategy: kept(f"drift-{number}", chosen, lambda strategy=strategy: falling_link.measured(strategy))  # type: ignore[misc]
        for number, strategy in enumerate(falling_link.STRATEGIES)
    }


def _steady_runs(root: Path) -> Iterator[RealRun]:
    """Yield the runs with a strategy that earlier parts have left."""
    for file in sorted((root / "runs").glob("*/*.json")):
        run = RealRun.of(json.loads(file.read_text())["run"], root)
        if file.with_suffix("").is_dir() and run.place in (*PROBED, QUICK) and not run.strategy.depends_on_time:
            yield run


def _alarms(real: RealRun) -> Found | None:
    """Return the drifts that the rule finds in a run; None for a run without windows to judge."""
    times = round_times(tacit.Run.load(real.folder))
    expected = _expected(real)
    windows = (len(times) - _SKIPPED) // WINDOW
    if expected is None or windows < 2:
        return None
    rule, alarms = DriftRule(expected, pause_s=0.0), []
    for number, one in enumerate(times, 1):
        if (found := rule.add(one)) is not None:
            alarms.append({"round": number, "cause": found.cause, "rank": found.rank})
            alarms[-1] |= {"planned_s": found.planned_s, "measured_s": found.measured_s}
    return {
        "place": str(real.place),
        "strategy": str(real.strategy),
        "seed": real.seed,
        "windows": windows,
        "alarms": alarms,
    }


def _expected(real: RealRun) -> Expected | None:
    """Return what the plan of the place predicts for the strategy of the run."""
    goal = Goal(real.place, EQUAL_LOSS)
    plan = plan_of(goal, real.root, own=real.strategy, strategies=[real.strategy], target_loss=None, jobs=1)
    everyone = tuple(range(real.place.hosts))
    rows = (row for row in plan.rows if str(row.strategy) == str(real.strategy) and row.ranks == everyone)
    row = next(rows, None)
    return None if row is None else Expected.of(replace(plan, best=row).prediction)


def _steady_claims(steady: list[Found], falls: dict[str, Found]) -> list[Found]:
    alarms = [one for one in steady if one["alarms"]]
    live = sum(len(one["steady"]["drifts"]) for one in falls.values())
    said = f"{len(alarms)} of {len(steady)} runs with {sum(one['windows'] for one in steady)} windows of five rounds"
    if alarms:
        where = Counter(f"{one['strategy']}, {one['place']}" for one in alarms)
        said += f" ({'; '.join(where)})"
    said += f"; {live} in {len(falls)} steady runs of `tacit train --plan`"
    return [target("steady", "no false alarm on steady runs", said, bool(steady) and not alarms and not live)]


def _falling_claims(falls: dict[str, Found]) -> list[Found]:
    if not falls:
        return []
    rounds = {strategy: one["slower"].get("rounds_until_told") for strategy, one in falls.items()}
    said = "; ".join(f"{strategy}: {'never' if count is None else count}" for strategy, count in rounds.items())
    holds = all(count is not None and count <= MOST_ROUNDS for count in rounds.values())
    return [target("falling link", f"an alarm within {MOST_ROUNDS} rounds after 100 became 30 Mbit/s", said, holds)]
