"""What live=True costs: the time of a step with and without the two numbers per rank in each round.

Two processes of one machine train the same model with AllReduce, so that each step has a round. Each turn has a session
without live numbers and one with them, in alternating order; a step sleeps, so that the processes do not compete for
cores. The cost of a turn is the difference between the lower quartiles of its steps with and without, and the cost is
the median over turns, as a share of a step. What the calls themselves take is measured as well, alone.
"""

from __future__ import annotations

import os
import statistics
import time
from types import SimpleNamespace
from typing import Any, Final

import torch

import tacit
from tacit.runtime.live_times import LiveTimes
from tacit.session.plan_watch.drift import DriftRule, Expected, Range, RoundTimes
from tests.runtime.processes import together

NUMBERS: Final = 150_000
STEPS, TURNS, STEP_S = 30, 40, 0.02


def session_s(live: bool, steps: int, step_s: float) -> list[float]:
    """Return the times of the steps of a session."""
    torch.manual_seed(0)
    model = torch.nn.Linear(NUMBERS // 10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)  # larger ones diverge
    batch, times_s = torch.ones(1, NUMBERS // 10), []
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=steps, live=live):
        for _ in range(steps):
            begun = time.perf_counter()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            time.sleep(max(0.0, step_s - (time.perf_counter() - begun)))
            optimizer.step()
            times_s.append(time.perf_counter() - begun)
    return times_s


def calls_s(workers: int) -> float:
    """Return what the calls for the numbers of a round take, alone: fill the places, read them, and watch them."""
    step = SimpleNamespace(compute_s=0.0, hook_s=0.0, computed=0)
    live, sent, times_s = LiveTimes(step, 0, workers), torch.zeros(NUMBERS + 1 + 2 * workers), []  # type: ignore[arg-type]
    around = Range.around(0.02)
    rule = DriftRule(Expected(0.02, Range.around(0.0), (around,) * workers))
    for number in range(5000):
        begun = time.perf_counter()
        step.computed, step.compute_s = number, 0.02 * number
        live.fill(sent[NUMBERS + 1 :])
        live.read(sent[NUMBERS + 1 :])
        if live.latest is not None:
            rule.add(RoundTimes(live.latest.steps, 0.02, live.latest.compute_s, live.latest.hook_s))
        times_s.append(time.perf_counter() - begun)
    return statistics.mean(sorted(times_s)[: int(0.9 * len(times_s))])


def turns(steps: int, count: int, step_s: float, priority: bool) -> list[dict[str, list[float]]]:
    """Return the times of the steps of each turn, in a process among two."""
    torch.set_num_threads(1)
    if priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(20))
    session_s(True, 5, step_s)  # opens connections and loads code
    found = []
    for turn in range(count):
        order = (False, True) if turn % 2 else (True, False)
        times_s = {live: session_s(live, steps, step_s) for live in order}
        found.append({"without": times_s[False], "with": times_s[True]})
    return found


def lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def measured(*, is_quick: bool) -> dict[str, Any]:
    """Return the cost as seconds and as a share of a step, and that of the calls alone."""
    count = 2 if is_quick else TURNS
    found = together(2, turns, STEPS, count, STEP_S, not is_quick, timeout_s=60 + 4 * count * STEPS * STEP_S)[0]
    by_turn = [lower_quartile(one["with"]) - lower_quartile(one["without"]) for one in found]
    torch.set_num_threads(1)
    alone_s = calls_s(2)
    return {
        "step_s": STEP_S,
        "steps": STEPS,
        "turns": count,
        "parameters": NUMBERS,
        "step_without_s": statistics.median(lower_quartile(one["without"]) for one in found),
        "cost_s": statistics.median(by_turn),
        "cost": statistics.median(by_turn) / STEP_S,
        "cost_quartiles": [value / STEP_S for value in statistics.quantiles(by_turn, n=4)],
        "calls_s": alone_s,
        "calls": alone_s / STEP_S,
    }
