"""Run drawn plans of faults in the simulator, and check what must hold in each.

    python -m fuzz.plans --plans 2000 --strategy all --out benchmarks/results/fuzz_plans.json
    python -m fuzz.plans --first 17 --plans 1 --strategy SwarmSGD          # one plan, with what it does

Every plan runs twice: on the default host, which may take a fast path, and on threads with a strategy that tells what
it does. Both must end alike. A plan that fails is printed with its strategy and seed. The file of counts is continued:
plans that it has are not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import time
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import tacit
from fuzz.drawn_plans import STRATEGIES, DrawnPlan, draw
from fuzz.plan_checks import model_problems, problems, watched

LIMIT_S = 30.0  # of processor time, and twenty times as much on the clock


class Hang(BaseException):
    """A run that has not ended within ``LIMIT_S``."""


def outcome(plan: DrawnPlan, strategy: tacit.Strategy[Any], host: str | None) -> tuple[str, Any, BaseException | None]:
    """Run ``plan``; return how it ended, the run as far as it went, and the error."""
    try:
        run = tacit.simulate(plan.workload, strategy, cluster=plan.cluster, host=host, **plan.settings)
    except ValueError as error:
        return ("refused" if "admits no workers" in str(error) else "ValueError"), None, error
    except tacit.TacitError as error:
        return type(error).__name__, getattr(error, "run", None), error
    except Exception as error:  # noqa: BLE001 - any other error is a finding
        return f"foreign {type(error).__name__}", None, error
    return "finished", run, None


def tried(name: str, seed: int) -> tuple[str, list[str]]:
    """Run the plan of a strategy and a seed on both hosts; return how it ended, and what is wrong."""
    plan = draw(name, seed)
    told, seen = watched(plan)
    kind, run, error = outcome(plan, told, "thread")
    wrong = [*problems(plan, kind, run, error), *model_problems(plan, run, seen)]
    strategy = told if plan.keeps_models else plan.strategy
    if plan.keeps_models:
        strategy, _ = watched(plan)
    other = outcome(plan, strategy, None)
    if _signature(kind, run, error) != _signature(*other):
        wrong.append(f"hosts differ: {_signature(kind, run, error)} and {_signature(*other)}")
    return kind, wrong


def _signature(kind: str, run: tacit.Run | None, error: BaseException | None) -> tuple[str, str | None, str]:
    """Return what must be equal on both hosts; evaluations that an error has cut short need not be."""
    digest = None if run is None else run.digest if kind == "finished" else run.trace.digest
    return kind, digest, "" if error is None else str(error)[:300]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--plans", type=int, default=200, help="of each strategy")
    arguments.add_argument("--first", type=int, default=0, help="the first seed")
    arguments.add_argument("--strategy", default="all", help=f"all, or one of {', '.join(STRATEGIES)}")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="begin no plan after so many seconds")
    arguments.add_argument("--out", type=Path, help="the file of counts, which is continued")
    given = arguments.parse_args()
    if given.strategy != "all" and given.strategy not in STRATEGIES:
        arguments.error(f"--strategy {given.strategy} is unknown; known are all, {', '.join(STRATEGIES)}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _raise_hang)
    names = list(STRATEGIES) if given.strategy == "all" else [given.strategy]
    counts = json.loads(given.out.read_text()) if given.out and given.out.exists() else {"strategies": {}}
    begun_s, failed = time.monotonic(), 0
    for seed in range(given.first, given.first + given.plans):
        for name in names:
            if time.monotonic() - begun_s > given.seconds:
                break
            row = counts["strategies"].setdefault(name, {"plans": 0, "ends": {}, "failing": {}})
            if given.out and seed < row["plans"]:
                continue
            failed += _count(row, name, seed)
        if given.out:
            _write(given.out, counts)
    total = Counter(end for row in counts["strategies"].values() for end, n in row["ends"].items() for _ in range(n))
    print(f"{sum(total.values())} plans of {len(counts['strategies'])} strategies: {dict(total.most_common())}")
    print(f"{failed} failed now")
    return int(failed > 0)


def _count(row: dict[str, Any], name: str, seed: int) -> bool:
    """Run one plan and count it in ``row``; return whether it failed."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, 20 * LIMIT_S)
    try:
        kind, wrong = tried(name, seed)
    except Hang:
        kind, wrong = "hang", [f"not ended after {LIMIT_S:g} s"]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    row["plans"] += 1
    row["ends"][kind] = row["ends"].get(kind, 0) + 1
    if wrong:
        row["failing"][str(seed)] = wrong[0][:300]
        faults = ", ".join(map(str, draw(name, seed).cluster.faults))
        print(f"FAILED --strategy {name} --first {seed} --plans 1: {wrong} with {faults}", flush=True)
    return bool(wrong)


def _write(path: Path, counts: dict[str, Any]) -> None:
    rows = counts["strategies"].values()
    facts = {
        "command": "python -m fuzz.plans --plans 2000 --strategy all --out benchmarks/results/fuzz_plans.json",
        "versions": {name: version(name) for name in ("tacit", "torch", "greenlet")}
        | {"python": platform.python_version()},
        "plans": sum(row["plans"] for row in rows),
        "failing": sum(len(row["failing"]) for row in rows),
    }
    path.write_text(json.dumps(facts | {"strategies": counts["strategies"]}, indent=1) + "\n")


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise Hang


if __name__ == "__main__":
    sys.exit(main())
