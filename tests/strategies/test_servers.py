"""Laws of servers that wait for K of P: how long an update takes, and which gradients it is made of."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw

import tacit
from tacit import theory, workloads
from tacit.core.randomness import Streams
from tests.strategies.server_runs import (
    ASYNC,
    FREE,
    KINDS,
    QUADRATIC,
    SEVERAL_TENSORS,
    SYNC,
    notes,
    replayed,
    simulate,
    staleness,
    time_per_update,
    used,
)

EXPONENTIAL = tacit.Exponential(mean_s=1.0)
SHIFTED = tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=1.0)
NAMES = dict(zip(KINDS, ("k-sync", "k-batch-sync", "k-async", "k-batch-async"), strict=True))

# Time.


@pytest.mark.slow
@pytest.mark.parametrize("compute", [EXPONENTIAL, SHIFTED], ids=["exponential", "shifted"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_takes_the_expected_time(kind, k, compute):
    """The table of §4.2; where K-async is known between bounds only, it keeps to them."""
    measured_s = time_per_update(kind(k=k), compute, workers=8, updates=10_000)
    lower_s, upper_s = theory.update_time_bounds(NAMES[kind], k=k, workers=8, compute=compute)
    assert 0.97 * lower_s < measured_s < 1.03 * upper_s


def test_waiting_for_all_costs_what_the_slowest_takes():
    for kind in (tacit.KSync, tacit.KAsync):
        assert time_per_update(kind(k=8), EXPONENTIAL, 8, 3000) == pytest.approx(2.7179, rel=0.03)


def test_stale_work_is_worth_keeping_unless_it_is_likely_to_last():
    """What is left of a step is shorter than a new one with a fixed part in it, and longer under heavy tails."""
    shifted_async, shifted_sync = (time_per_update(kind(k=4), SHIFTED, 8, 3000) for kind in (tacit.KAsync, tacit.KSync))
    assert shifted_async < 0.9 * shifted_sync
    heavy = tacit.HyperExponential(means_s=(0.1, 10.0), weights=(0.9, 0.1))
    heavy_async, heavy_sync = (time_per_update(kind(k=4), heavy, 8, 3000) for kind in (tacit.KAsync, tacit.KSync))
    assert heavy_async > 1.5 * heavy_sync


@pytest.mark.parametrize(("k", "fresh"), [(1, 0.125), (4, 0.5)])
def test_a_gradient_is_as_often_fresh_as_memoryless_times_say(k, fresh):
    run = simulate(tacit.KAsync(k=k), workloads.quadratic(dimension=1), workers=8, steps=10_000 // k, timing_only=True)
    ages = np.array(staleness(run))
    assert (ages == 0).mean() == pytest.approx(fresh, abs=0.02)
    assert fresh == theory.fresh_probability("k-async", k=k, workers=8, compute=EXPONENTIAL)


def test_learners_share_the_servers_nic_and_shards_spread_it():
    """80 kB up and down for each of 8 learners through one NIC of 1 MB/s, five times up and four times down; with two
    shards through two NICs.
    """
    model = workloads.custom(
        torch.nn.Sequential(torch.nn.Linear(100, 50, bias=False), torch.nn.Linear(50, 100, bias=False)).double(),
        torch.nn.MSELoss(),
        data=(torch.zeros(16, 100).double(), torch.zeros(16, 100).double()),
        batch_size=1,
    )
    times_s = {
        shards: simulate(
            tacit.KSync(k=8, shards=shards),
            model,
            workers=8,
            steps=5,
            compute=tacit.Constant(mean_s=1e-3),
            bandwidth_bytes_per_s=1e6,
            timing_only=True,
        ).summary()["time_s"]
        for shards in (1, 2)
    }
    assert times_s[1] == pytest.approx(9 * 8 * 0.08, rel=0.01)
    assert times_s[2] == pytest.approx(9 * 8 * 0.04, rel=0.01)


# Which gradients, and where they were taken.


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_made_of_the_gradients_in_the_notes_and_of_nothing_else(kind, k):
    """So cancelled work never reaches the model; on a slow network late gradients are dropped too."""
    for network in (FREE, {"latency_s": 0.3, "bandwidth_bytes_per_s": 1e3}):
        run = simulate(kind(k=k), lr=0.2, **network)
        assert all(len(batch) == k for batch in used(run)) and len(used(run)) == 40
        torch.testing.assert_close(run.parameters, replayed(run, lambda *_: 0.2), rtol=1e-10, atol=1e-12)
        if kind in SYNC:
            assert set(staleness(run)) == {0.0}
            assert run.summary()["cancelled"] > 0.1
        else:
            assert max(staleness(run)) > 0 == min(staleness(run))
            assert run.summary()["cancelled"] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_every_gradient_is_used_at_most_once_and_exactly_once_where_nothing_is_cancelled(kind):
    run = simulate(kind(k=3), steps=60, latency_s=0.2)
    pushes = [sum(e.rank == rank and e.label == "push" for e in run.trace.of("receive", "send")) for rank in range(5)]
    uses = [sum(learner == rank for batch in used(run) for learner, _ in batch) for rank in range(5)]
    assert all(use <= push for use, push in zip(uses, pushes, strict=True))
    late, unused = len(notes(run, "late")), sum(pushes) - sum(uses)
    if kind in ASYNC:
        assert late == 0 and unused <= 2 + 5  # not enough for another update, and those on their way at the end
    else:
        assert late > 0 and unused > 2 + 5


@pytest.mark.parametrize("kind", [tacit.KSync, tacit.KAsync])
def test_learners_wait_for_the_update_or_never(kind):
    """In the kinds that count learners one never appears twice in an update; where batches count it does, and nobody
    idles.
    """
    assert all(len({learner for learner, _ in batch}) == 3 for batch in used(simulate(kind(k=3))))
    batches = {tacit.KSync: tacit.KBatchSync, tacit.KAsync: tacit.KBatchAsync}[kind]
    run = simulate(batches(k=3))
    assert any(len({learner for learner, _ in batch}) < 3 for batch in used(run))
    assert run.summary()["idle"] == 0.0 < simulate(kind(k=3)).summary()["idle"]


def test_cancelled_steps_that_run_to_their_end_cost_their_time():
    at_once, to_the_end = (simulate(tacit.KSync(k=1), cancel=cancel) for cancel in ("instant", "step_end"))
    assert to_the_end.summary()["time_s"] > 2 * at_once.summary()["time_s"]
    torch.testing.assert_close(to_the_end.parameters, replayed(to_the_end, lambda *_: 0.1), rtol=1e-10, atol=1e-12)


def test_async_is_the_event_loop_of_the_paper():
    """Against a loop of fifteen lines with the same drawn times: pop the earliest, apply its gradient, give it the
    model and a new time.
    """
    run = simulate(tacit.KAsync(k=1), lr=0.3, steps=200)
    problem = QUADRATIC.open(5, Streams(1))
    draws = [iter(EXPONENTIAL.draw(Streams(1).numpy("compute", rank), 256)) for rank in range(5)]
    model = problem.module.x.detach().clone()
    held = [model.clone() for _ in range(5)]
    heap = [(next(draws[rank]), rank) for rank in range(5)]
    heapq.heapify(heap)
    for _ in range(200):
        now_s, rank = heapq.heappop(heap)
        model = model - 0.3 * problem.module.eigenvalues * (held[rank] - problem.centers[rank])
        held[rank] = model
        heapq.heappush(heap, (now_s + next(draws[rank]), rank))
    torch.testing.assert_close(run.parameters, model, rtol=1e-10, atol=1e-12)
    assert run.summary()["time_s"] == pytest.approx(now_s)


# Equals of other strategies.


@pytest.mark.parametrize(
    "settings_of_run",
    [
        {"lr": 0.1},
        {"lr": 0.05, "momentum": 0.9},
        {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.02)},
        {"lr": 0.1, "schedule": lambda step: 1 / (1 + step)},
    ],
    ids=["sgd", "momentum", "adam", "schedule"],
)
def test_waiting_for_all_is_all_reduce(settings_of_run):
    """Full gradients of uneven parts of the data (2, 2, 2 and 4 samples), so that weights matter."""
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    workload = workloads.least_squares((x, x.sum(1).sin()), split="contiguous", batch_size=None)
    runs = [
        simulate(strategy, workload, workers=4, steps=30, **settings_of_run)
        for strategy in (tacit.AllReduce(), tacit.KSync(k=4), tacit.KAsync(k=4))
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.parameters, runs[0].parameters, rtol=1e-12, atol=1e-14)


def test_compressed_gradients_to_a_server_that_waits_for_all_are_ef21():
    """g_i on both ends, learner by learner: the mean of the server's estimates is that of the ranks' own."""
    own, served = (
        simulate(strategy, lr=0.1, steps=50)
        for strategy in (
            tacit.CompressedGradient(compressor=tacit.TopK(k=2), feedback=tacit.EF21()),
            tacit.KSync(k=5, compressor=tacit.TopK(k=2)),
        )
    )
    torch.testing.assert_close(served.parameters, own.parameters, rtol=1e-9, atol=1e-12)


def test_schedules_ride_on_gradients():
    """A gradient is applied with the rate its learner had at the model it computed at."""
    factor = lambda update: 0.5 ** (update // 10)  # noqa: E731
    run = simulate(tacit.KBatchAsync(k=2), lr=0.2, schedule=factor)
    torch.testing.assert_close(
        run.parameters, replayed(run, lambda version, *_: 0.2 * factor(version)), rtol=1e-10, atol=1e-12
    )


def test_the_server_has_one_momentum():
    run = simulate(tacit.KAsync(k=2), lr=0.05, momentum=0.9)
    torch.testing.assert_close(run.parameters, replayed(run, lambda *_: 0.05, momentum=0.9), rtol=1e-9, atol=1e-12)


# Rates that look at staleness.


@pytest.mark.parametrize("maximum", [None, 0.3])
@pytest.mark.parametrize("kind", ASYNC)
def test_the_staleness_rate_is_the_papers(kind, maximum):
    """η_j = min(C/‖w_j − w_τ‖², η_max), gradient by gradient."""
    c, largest = 0.02, 0.2 if maximum is None else maximum
    run = simulate(kind(k=2, rate=tacit.StalenessRate(c=c, maximum=maximum)), lr=0.2)

    def rate(version: int, age: int, squared: float) -> float:
        return min(c / squared, largest) if age and squared else largest

    torch.testing.assert_close(run.parameters, replayed(run, rate), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(run.parameters, replayed(run, lambda *_: largest))  # it did something


def test_the_rival_divides_by_the_age():
    run = simulate(tacit.KAsync(k=1, rate=tacit.InverseStaleness()), lr=0.2)
    torch.testing.assert_close(run.parameters, replayed(run, lambda _, age, __: 0.2 / (1 + age)), rtol=1e-9, atol=1e-12)


def test_the_staleness_rate_survives_a_step_that_makes_constant_async_diverge():
    """§4.7(7): curvature 1, P = 8, η = 1."""
    workload = workloads.quadratic(dimension=5, condition=1.0)
    lost, kept = (
        simulate(tacit.KAsync(k=1, rate=rate), workload, workers=8, steps=400, lr=1.0)
        for rate in (None, tacit.StalenessRate(c=0.005))
    )
    assert max(row["loss"] for row in lost.history) > 1e3
    assert max(row["loss"] for row in kept.history[50:]) < 0.5


# Bounded staleness.

delays = draw.sampled_from(
    [
        tacit.Constant(mean_s=1.0),
        EXPONENTIAL,
        tacit.Pareto(minimum_s=0.2, shape=1.2),
        tacit.HyperExponential(means_s=(0.1, 5.0), weights=(0.9, 0.1)),
    ]
)
networks = draw.fixed_dictionaries(
    {
        "latency_s": draw.sampled_from([0.0, 0.01, 0.5]),
        "bandwidth_bytes_per_s": draw.sampled_from([1e3, 1e4, math.inf]),
        "links": draw.dictionaries(
            draw.sampled_from([(0, -1), (1, -1)]), draw.builds(tacit.Link, latency_s=draw.sampled_from([0.0, 0.3, 2.0]))
        ),
    }
)


@pytest.mark.slow
@given(
    kind=draw.sampled_from(ASYNC),
    k=draw.integers(1, 4),
    bound=draw.integers(0, 4),
    shards=draw.integers(1, 3),
    compute=delays,
    network=networks,
    slow=draw.floats(1, 20),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_bounded_staleness_holds_and_goes_on(kind, k, bound, shards, compute, network, slow, seed):
    strategy = kind(k=k, maximum_staleness=bound, shards=shards)
    run = simulate(
        strategy,
        SEVERAL_TENSORS,
        workers=4,
        steps=20,
        compute=compute,
        speed={3: 1 / slow},
        seed=seed,
        timing_only=True,
        **network,
    )
    assert run.summary()["steps"] == 20
    assert min(staleness(run)) >= 0 and max(staleness(run)) <= bound


def test_a_bound_of_nothing_waits_for_everybody():
    """maximum_staleness=0 lets no gradient grow old: updates wait until nobody computes."""
    run = simulate(tacit.KAsync(k=1, maximum_staleness=0))
    assert all(sorted(batch) == [(rank, 0) for rank in range(5)] for batch in used(run))
    loose = simulate(tacit.KAsync(k=1, maximum_staleness=8), compute=tacit.Pareto(minimum_s=0.1, shape=1.1), steps=300)
    assert max(staleness(loose)) == 8  # the bound is what holds it


# Shards.


@pytest.mark.slow
@given(
    kind=draw.sampled_from(KINDS),
    k=draw.integers(1, 4),
    shards=draw.integers(2, 4),
    compute=delays,
    network=networks,
    seed=draw.integers(0, 99),
    up=draw.booleans(),
    models_down=draw.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_shards_never_wait_for_each_other_for_ever(kind, k, shards, compute, network, seed, up, models_down):
    """Whatever link is slow, to whichever shard: all updates are made, and never with a gradient from the future."""
    top = tacit.TopK(fraction=0.3)
    strategy = kind(k=k, shards=shards, compressor=top if up else None, model_compressor=top if models_down else None)
    run = simulate(
        strategy, SEVERAL_TENSORS, workers=4, steps=12, compute=compute, seed=seed, timing_only=True, **network
    )
    assert run.summary()["steps"] == 12 and min(staleness(run)) >= 0
    if kind in SYNC:
        assert set(staleness(run)) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("compute", [EXPONENTIAL, tacit.Constant(mean_s=1.0)], ids=["exponential", "constant"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_shards_make_the_same_model_as_one_server_where_the_network_is_free(kind, compute):
    one, several = (
        simulate(kind(k=2, shards=shards), SEVERAL_TENSORS, compute=compute, lr=0.05, momentum=0.5) for shards in (1, 3)
    )
    torch.testing.assert_close(several.parameters, one.parameters, rtol=1e-12, atol=1e-14)
    assert used(several) == used(one)


def test_every_shard_makes_its_updates_of_the_same_gradients():
    """K-batch-async on uneven links: parts may be a version apart when a learner takes them, but none is missed or used
    twice.
    """
    run = simulate(
        tacit.KBatchAsync(k=3, shards=3),
        SEVERAL_TENSORS,
        lr=0.05,
        steps=50,
        latency_s=0.1,
        bandwidth_bytes_per_s=2e3,
        links={(0, -1): tacit.Link(latency_s=1.0)},
    )
    assert run.status == "finished" and run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]
    assert [kept["updates"] for kept in run.server] == [50] * 3


# Compression.


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tacit.KSync, tacit.KBatchAsync])
def test_compression_saves_bytes_both_ways_and_learns(kind):
    top = tacit.TopK(fraction=0.1)
    plain, both = (
        simulate(kind(k=3, **compressed), workloads.digits(), steps=40, lr=0.2)
        for compressed in ({}, {"compressor": top, "model_compressor": top})
    )
    assert both.history[-1]["loss"] < 0.5 * both.history[0]["loss"]
    for name in ("push", "model"):
        before, after = (
            np.mean([e.size_bytes for e in run.trace.of("send") if e.label == name]) for run in (plain, both)
        )
        assert after < 0.25 * before


@pytest.mark.parametrize("kind", KINDS)
def test_models_compressed_with_nothing_left_out_are_the_models(kind):
    """With all coordinates said, both ends of every link agree exactly, whoever is restarted, late or idle, and in
    whatever order.
    """
    network = {"latency_s": 0.3, "bandwidth_bytes_per_s": 2e3}
    run = simulate(
        kind(k=2, compressor=tacit.TopK(fraction=1.0), model_compressor=tacit.TopK(fraction=1.0)), lr=0.2, **network
    )
    torch.testing.assert_close(run.parameters, replayed(run, lambda *_: 0.2), rtol=1e-8, atol=1e-10)
