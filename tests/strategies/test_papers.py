"""What the papers say, where it is cheap to see; the whole of it is under benchmarks/papers/."""

from __future__ import annotations

import math

import pytest

import tacit
from tacit import workloads

pytestmark = pytest.mark.paper
CLUSTER = tacit.Cluster(workers=8, compute=tacit.Constant(mean_s=0.01))
CUTS = tacit.StepDecay(at=(0.5, 0.75), by=0.1)


def digits(
    period: tacit.strategies.local_sgd.periods.Period, steps: int = 600, split: str = "sorted", **settings
) -> tacit.Run:
    settings = {"cluster": CLUSTER, "lr": 0.1, "seed": 0, **settings}
    return tacit.simulate(workloads.digits(split=split), tacit.LocalSGD(period=period), steps=steps, **settings)


def periods_at(run: tacit.Run, *shares: float) -> list[float]:
    """Return the period in force after these shares of the run."""
    return [next(r["period"] for r in run.history if r["step"] >= share * run.steps) for share in shares]


@pytest.fixture(scope="module")
def adaptive() -> tacit.Run:
    return digits(tacit.VariancePeriod(initial=4), schedule=CUTS)


def test_adpsgd_speaks_less_after_each_cut_of_the_rate(adaptive: tacit.Run):
    """§5.7(3): the learning rate is in the target, so the period rises when it is cut."""
    sampling, before, middle, end = periods_at(adaptive, 0.2, 0.49, 0.74, 1.0)
    assert sampling == 4
    assert before < middle < end


def test_variance_over_rate_drops_after_each_cut():
    """§5.7(2): S/γ falls about tenfold with γ, because S goes with γ²."""
    run = digits(tacit.Every(8), schedule=CUTS, evaluate_every=8)
    ratio = {
        row["step"]: row["spread"] / (0.1 * CUTS.factor(row["step"] - 1, 600)) for row in run.history if row["step"]
    }
    for cut in (300, 450):
        before = [value for step, value in ratio.items() if cut - 80 <= step <= cut]
        after = [value for step, value in ratio.items() if cut + 16 <= step <= cut + 96]
        assert sum(before) / len(before) > 4 * sum(after) / len(after)


def test_adpsgd_beats_its_own_schedule_reversed(adaptive: tacit.Run):
    """§5.7(4): long periods early and short ones late are worse at the same budget, the paper's central claim."""
    noted = [int(e.value) for e in adaptive.trace.of("note")]
    noted[-1] = 600 - sum(noted[:-1])  # the last period was cut short by the end
    reverse = digits(tacit.PeriodList(noted[::-1]), schedule=CUTS)
    assert abs(reverse.summary()["rounds"] - adaptive.summary()["rounds"]) <= 1
    assert adaptive.history[-1]["loss"] < reverse.history[-1]["loss"]


def test_the_order_of_periods_at_a_constant_rate():
    """§1.6(3): more rounds, lower loss; growth spread over the run beats growth saved for its end.

    ``benchmarks/papers/local_sgd.py``, part 3, checks the same order at the paper's length: 5,469 steps, five seeds.
    """
    settings = {
        "split": "shuffled",
        "steps": 300,
        "evaluate_every": 300,
        "cluster": tacit.Cluster(workers=4),
        "lr": 0.5,
    }
    periods = (
        tacit.Every(1),
        tacit.Every(15),
        tacit.LinearPeriod(initial=15, rounds=10),
        tacit.PeriodList([15] * 9 + [165]),
        tacit.OneShot(),
    )
    last = [digits(period, **settings).history[-1]["loss"] for period in periods]
    assert last == sorted(last)
    assert last[-1] > 2 * last[1]


def losses_at_averages(run: tacit.Run) -> list[tuple[float, int]]:
    """Return F(x̄) on all training data at the start and at each round but the last, each with the period that a round
    later begins.
    """
    loss = {row["step"]: row["loss"] for row in run.history}
    noted = [int(event.value) for event in run.trace.of("note")]
    starts = [0, *(sum(noted[: index + 1]) for index in range(len(noted) - 1))]
    return [(loss[step], period) for step, period in zip(starts, noted[1:], strict=False)]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_loss_rule_of_ada_lupa_goes_by_the_averaged_model(momentum: float):
    """τ_i = ⌈(F(x̄₀)/F(x̄))^{1/3}⌉ τ₀: rounds are at multiples of τ₀ = 16.

    On label-sorted data the local losses are a tenth of F(x̄), and would make τ 64 in place of 32.
    """
    run = digits(tacit.LossPeriod(initial=16), steps=400, evaluate_every=16, momentum=momentum)
    found = losses_at_averages(run)
    assert [period for _, period in found[:2]] == [16, 32]
    for loss, period in found[1:]:
        least, most = (math.ceil((found[0][0] / (loss * noise)) ** (1 / 3)) * 16 for noise in (1.2, 0.8))
        assert least <= period <= most  # F(x̄) is estimated on one mini-batch a worker


@pytest.mark.parametrize("split", ["sorted", "shuffled"])
def test_adacomm_goes_by_the_averaged_model(split: str):
    """τ = ⌈√(F(x̄)/F(x̄₀)) τ₀⌉, within the noise of a mini-batch a worker."""
    run = digits(tacit.AdaCommPeriod(initial=32), steps=200, split=split, evaluate_every=1)
    found = losses_at_averages(run)
    ratios = [period / (math.sqrt(loss / found[0][0]) * 32) for loss, period in found]
    assert all(0.7 < ratio < 1.4 for ratio in ratios)
    assert 0.9 < sum(ratios) / len(ratios) < 1.15


def test_time_to_a_loss_improves_with_fewer_rounds_on_a_slow_network():
    """What it is all for: at 10 Mbit/s local steps reach the same loss sooner than averaging every gradient."""
    slow = tacit.Cluster(workers=8, compute=tacit.Constant(mean_s=0.01), bandwidth_bytes_per_s=1.25e6)
    every = tacit.simulate(workloads.digits(), tacit.AllReduce(), cluster=slow, steps=200)
    local = digits(tacit.Every(8), steps=200, split="shuffled", cluster=slow)
    reached = [run.first_reaching(0.3) for run in (every, local)]
    assert reached[0] is not None and reached[1] is not None
    assert reached[1]["time_s"] < reached[0]["time_s"] / 2
