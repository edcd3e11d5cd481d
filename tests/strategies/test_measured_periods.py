"""Periods that follow measured times and the learning rate: LocalSGD with PacePeriod and RatePeriod in the simulator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tacit
from tacit import workloads
from tacit.strategies.local_sgd.rank_times import RankTimes, RoundClock, extremes, placed, row_of, rows_in

QUADRATIC = workloads.quadratic(dimension=1000)
STEP_S, BYTES = 0.01, 8 * 1000 * 1.5  # a ring of four ranks sends 3/2 of a model of 1000 numbers in float64
PACE = tacit.PacePeriod(communication=0.1, maximum=1000)


def periods(strategy: tacit.Strategy, steps: int = 400, arguments: dict[str, Any] | None = None, **cluster: Any):
    """Return the periods of a timing-only run on four workers with links that need 10 ms for a model."""
    parts = {"bandwidth_bytes_per_s": BYTES / 0.01, "latency_s": 0.0, "compute": tacit.Constant(mean_s=STEP_S)}
    cluster = tacit.Cluster(workers=4, **{**parts, **cluster})
    run = tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=steps, timing_only=True, **(arguments or {}))
    return [int(event.value) for event in run.trace if event.label == "period"]


def test_a_link_ten_times_slower_gets_a_period_ten_times_longer():
    """Rounds of 10 ms (and a few numbers) and steps of 10 ms: nine or ten steps; of 100 ms: ninety-odd."""
    fast, slow = (periods(tacit.LocalSGD(period=PACE), bandwidth_bytes_per_s=BYTES / s)[-1] for s in (0.01, 0.1))
    assert fast == 10
    assert slow == pytest.approx(10 * 9.16, abs=1)


def test_waiting_for_a_slow_worker_is_not_communication():
    """One worker at a quarter of the speed: the others wait in each round, and the period is a quarter, not longer."""
    assert periods(tacit.LocalSGD(period=PACE), speed={2: 0.25})[-1] == 3


def test_the_period_follows_a_worker_that_becomes_slow():
    slow = tacit.Slow(rank=1, factor=5.0, at_s=2.0)
    seen = periods(tacit.LocalSGD(period=PACE), faults=[slow])
    assert seen[:5] == [1, 1, 1, 1, 10]
    assert seen[-1] == 2


def test_hooks_count_as_communication():
    """Encoding takes 20 ms in each round; without this cost a compressed round takes less than 10 ms."""
    strategy = tacit.LocalSGD(period=PACE, compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback())
    assert periods(strategy, costs={"encode": (0.0, 0.02)})[-1] - periods(strategy)[-1] == 18


def test_an_overlapped_round_counts_as_long_as_it_delays_a_step():
    """Rounds of 10 ms are hidden by two steps of 10 ms; of rounds of 50 ms about 30 ms are not."""
    strategy = tacit.LocalSGD(period=PACE, overlap_steps=2)
    assert periods(strategy)[-1] == 1
    assert periods(strategy, bandwidth_bytes_per_s=BYTES / 0.05)[-1] == pytest.approx(9 * 3.1, abs=1)


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.LocalSGD(period=tacit.PacePeriod(maximum=9), warmup_steps=6, outer=tacit.SlowMo()),
        tacit.LocalSGD(period=tacit.PacePeriod(maximum=9), overlap_steps=3),
        tacit.LocalSGD(period=tacit.PacePeriod(maximum=9), compressor=tacit.Sign(), aggregate="scatter"),
    ],
    ids=str,
)
def test_ranks_agree_under_random_times(strategy: tacit.Strategy):
    """A rank with another period than the others would end the run with ``Disagreement``."""
    cluster = tacit.Cluster(workers=5, bandwidth_bytes_per_s=1e6, compute=tacit.Exponential(mean_s=0.01))
    run = tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=60)
    seen = [event.value for event in run.trace if event.label == "period"]
    assert run.status == "finished"
    assert 1 < max(seen) <= 9


def test_the_rate_of_the_schedule_sets_the_period():
    """A tenth of the rate after 50 %, a hundredth after 75 %; the same in a run without models."""
    strategy = tacit.LocalSGD(period=tacit.RatePeriod(initial=2, maximum=50))
    arguments = {"cluster": tacit.Cluster(workers=3), "steps": 80, "schedule": tacit.StepDecay()}
    whole, timed = (tacit.simulate(QUADRATIC, strategy, timing_only=timed, **arguments) for timed in (False, True))
    assert [event.value for event in whole.trace if event.label == "period"] == [2] * 21 + [20, 50]
    assert whole.trace.digest == timed.trace.digest


def test_each_rank_keeps_its_times_whatever_its_weight():
    """What an all-reduce returns, Σ w x / Σ w, holds the times of each rank that has a weight."""
    times = [RankTimes(0.3, 0.02), RankTimes(), RankTimes(0.1, 0.05)]
    weights = torch.tensor([3.0, 1.0, 0.25])
    rows = torch.tensor([placed(one, rank, 3) for rank, one in enumerate(times)])
    means = (weights.unsqueeze(1) * rows).sum(0) / weights.sum()
    assert extremes(rows_in(means.tolist())) == pytest.approx(RankTimes(0.1, 0.05))
    assert extremes([row_of(one) for one in times]) == RankTimes(0.1, 0.05)
    assert extremes([row_of(RankTimes())] * 3) == RankTimes()


def test_a_clock_measures_the_time_between_rounds_without_the_rounds():
    clock = RoundClock()
    assert clock.begin(1.0, step=4) == RankTimes()
    clock.spent_s = 0.5
    assert clock.begin(4.5, step=10) == RankTimes(0.5, 0.5)
    assert clock.begin(4.5, step=10) == RankTimes()  # no step since then
    assert clock.begin(0.1, step=12) == RankTimes()  # resumed, with a clock that starts again
