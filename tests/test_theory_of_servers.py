"""What a server that waits for K of P costs in time, against closed forms and against event loops of a few lines."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

import tacit
from tacit import theory
from tacit.cluster.delays import Delay
from tacit.theory.times.order_statistics import by_quadrature

pytestmark = pytest.mark.slow

EXPONENTIAL = tacit.Exponential(mean_s=1.0)
SHIFTED = tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=1.0)
PARETO = tacit.Pareto(minimum_s=1.0, shape=2.5)
LOG_NORMAL = tacit.LogNormal(median_s=1.0, sigma=0.8)
MIXTURE = tacit.HyperExponential(means_s=(0.1, 2.0), weights=(0.8, 0.2))
RECORDED = tacit.Recorded(times_s=[0.1, 0.2, 0.6, 1.5])
ALL = (tacit.Constant(mean_s=1.0), EXPONENTIAL, SHIFTED, PARETO, LOG_NORMAL, MIXTURE, RECORDED)
SLOW_ONE = {3: 0.2}


class Server:
    """The event loop of §4.1: P workers with times drawn one by one; ``speed`` as in ``Cluster``."""

    def __init__(self, compute: Delay, workers: int, speed: dict[int, float] | None = None) -> None:
        self.compute, self.workers, self.speed = compute, workers, speed or {}
        self.random, self.drawn = np.random.default_rng(5), iter(())

    def step_s(self, worker: int) -> float:
        value = next(self.drawn, None)
        if value is None:
            self.drawn = iter(self.compute.draw(self.random, 4096).tolist())
            value = next(self.drawn)
        return value / self.speed.get(worker, 1.0)

    def start(self) -> list[tuple[float, int]]:
        heap = [(self.step_s(worker), worker) for worker in range(self.workers)]
        heapq.heapify(heap)
        return heap

    def k_batch_sync_s(self, k: int, updates: int) -> float:
        total = 0.0
        for _ in range(updates):
            heap = self.start()
            for _ in range(k):
                now, worker = heap[0]
                heapq.heapreplace(heap, (now + self.step_s(worker), worker))
            total += now
        return total / updates

    def k_async_s(self, k: int, updates: int) -> float:
        heap = self.start()
        for _ in range(updates):
            parked = [heapq.heappop(heap) for _ in range(k)]
            now = parked[-1][0]
            for _, worker in parked:
                heapq.heappush(heap, (now + self.step_s(worker), worker))
        return now / updates

    def k_batch_async_freshness(self, k: int, updates: int) -> list[float]:
        """Return the share of fresh gradients among the first, second, … of an update."""
        heap, holds, fresh = self.start(), [0] * self.workers, [0] * k
        for update in range(updates):
            for push in range(k):
                now, worker = heap[0]
                fresh[push] += holds[worker] == update
                holds[worker] = update + (push == k - 1)  # the last push makes the update before its worker fetches
                heapq.heapreplace(heap, (now + self.step_s(worker), worker))
        return [count / updates for count in fresh]


@pytest.mark.parametrize(
    ("workers", "k", "each", "batch", "each_shifted", "batch_shifted"),
    [
        (8, 1, 0.1250, 0.1250, 1.1250, 0.2500),
        (8, 2, 0.2679, 0.2500, 1.2679, 0.5000),
        (8, 4, 0.6345, 0.5000, 1.6345, 1.0000),
        (8, 8, 2.7179, 1.0000, 3.7179, 2.0000),
        (40, 10, 0.2836, 0.2500, 1.2836, 0.5000),
        (40, 40, 4.2785, 1.0000, 5.2785, 2.0000),
    ],
)
def test_the_table_of_the_paper(workers, k, each, batch, each_shifted, batch_shifted):
    """§4.2, mean 1 and shift 1."""

    def seconds(kind: str, compute: Delay = EXPONENTIAL) -> float:
        return round(theory.update_time(kind, k=k, workers=workers, compute=compute), 4)

    assert (seconds("k-sync"), seconds("k-async")) == (each, each)
    assert (seconds("k-batch-sync"), seconds("k-batch-async")) == (batch, batch)
    assert (seconds("k-sync", SHIFTED), seconds("k-batch-async", SHIFTED)) == (each_shifted, batch_shifted)


def test_speed_ups_of_the_paper():
    for workers, gain in ((8, 21.74), (40, 171.14)):
        assert theory.speed_up("async", over="sync", workers=workers, compute=EXPONENTIAL) == pytest.approx(
            gain, abs=0.005
        )
    gain = theory.speed_up("k-batch-async", over="k-sync", k=4, workers=8, compute=SHIFTED)
    assert gain == pytest.approx(8 * theory.order_statistic(SHIFTED, k=4, workers=8) / (4 * 2.0))


@pytest.mark.parametrize("compute", ALL, ids=str)
def test_waiting_for_all_is_sync_and_for_one_push_is_async(compute: Delay):
    def seconds(kind: str, k: int | None = None) -> float:
        return theory.update_time(kind, k=k, workers=6, compute=compute)

    assert seconds("sync") == seconds("k-sync", 6) == seconds("k-async", 6)
    assert seconds("async") == seconds("k-async", 1) == seconds("k-batch-async", 1) == compute.expected_s / 6
    assert seconds("k-batch-sync", 1) == seconds("k-sync", 1)


@pytest.mark.parametrize("compute", [EXPONENTIAL, SHIFTED, PARETO, tacit.Pareto(minimum_s=0.1, shape=1.7)], ids=str)
@pytest.mark.parametrize(("k", "workers"), [(1, 1), (1, 8), (5, 8), (8, 8), (40, 40), (1000, 4096), (4096, 4096)])
def test_quadrature_agrees_with_closed_forms(compute: Delay, k: int, workers: int):
    assert by_quadrature(compute, k, workers) == pytest.approx(
        theory.order_statistic(compute, k=k, workers=workers), rel=1e-9
    )


@pytest.mark.parametrize("compute", [LOG_NORMAL, MIXTURE, RECORDED], ids=str)
@pytest.mark.parametrize("speed", [{}, SLOW_ONE], ids=str)
def test_order_statistics_are_those_of_draws(compute: Delay, speed: dict[int, float]):
    factors = np.array([speed.get(rank, 1.0) for rank in range(4)])
    drawn = np.sort(compute.draw(np.random.default_rng(0), 400_000).reshape(-1, 4) / factors, axis=1).mean(0)
    found = [theory.order_statistic(compute, k=k, workers=4, speed=speed) for k in (1, 2, 3, 4)]
    assert found == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("compute", ALL, ids=str)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_speeds_that_hardly_differ_change_hardly_anything(compute: Delay, k: int):
    """Different workers go another way through the numerics than equal ones."""
    for kind in ("k-sync", "k-batch-sync"):
        equal = theory.update_time(kind, k=k, workers=5, compute=compute)
        nearly = theory.update_time(kind, k=k, workers=5, compute=compute, speed={0: 1 + 1e-9})
        assert nearly == pytest.approx(equal, rel=1e-4)
        twice = theory.update_time(kind, k=k, workers=5, compute=compute, speed=dict.fromkeys(range(5), 2.0))
        assert twice == pytest.approx(equal / 2, rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(draw.sampled_from(ALL), draw.sampled_from(["k-sync", "k-batch-sync", "k-batch-async"]), draw.data())
def test_more_workers_take_less_time_and_more_gradients_more(compute: Delay, kind: str, data: draw.DataObject):
    workers = data.draw(draw.integers(2, 12))
    k = data.draw(draw.integers(1, workers - 1))
    seconds = theory.update_time(kind, k=k, workers=workers, compute=compute)
    assert theory.update_time(kind, k=k + 1, workers=workers, compute=compute) >= seconds * (1 - 1e-3)
    assert theory.update_time(kind, k=k, workers=workers + 1, compute=compute) <= seconds * (1 + 1e-3)


@settings(max_examples=40, deadline=None)
@given(draw.sampled_from(ALL), draw.integers(2, 12), draw.data())
def test_batches_come_no_later_than_workers(compute: Delay, workers: int, data: draw.DataObject):
    """§4.2: K-batch-sync ≤ E[X_{K:P}], and never below E[X_{1:P}]."""
    k = data.draw(draw.integers(1, workers))
    batch, each, first = (
        theory.update_time(kind, k=count, workers=workers, compute=compute)
        for kind, count in (("k-batch-sync", k), ("k-sync", k), ("k-sync", 1))
    )
    assert first * (1 - 1e-3) <= batch <= each * (1 + 1e-3)


@pytest.mark.parametrize("compute", [SHIFTED, PARETO, LOG_NORMAL, MIXTURE, RECORDED], ids=str)
@pytest.mark.parametrize(("k", "workers", "speed"), [(4, 8, {}), (12, 4, {}), (5, 4, SLOW_ONE)], ids=str)
def test_k_batch_sync_is_what_an_event_loop_measures(compute: Delay, k: int, workers: int, speed: dict[int, float]):
    measured = Server(compute, workers, speed).k_batch_sync_s(k, 6000)
    predicted = theory.update_time("k-batch-sync", k=k, workers=workers, compute=compute, speed=speed)
    assert predicted == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(("k", "workers"), [(2, 2), (8, 8), (40, 8), (10, 40)])
def test_k_batch_sync_by_grid_agrees_with_poisson(k: int, workers: int):
    """A mixture of one kind is exponential, but goes through the grid; arrivals of all workers are a Poisson process."""
    alone = tacit.HyperExponential(means_s=(1.0,), weights=(1.0,))
    assert theory.update_time("k-batch-sync", k=k, workers=workers, compute=alone) == pytest.approx(
        k / workers, rel=1e-5
    )


def test_k_batch_sync_of_constant_times_counts_whole_steps():
    seconds = [
        theory.update_time("k-batch-sync", k=k, workers=4, compute=tacit.Constant(mean_s=2.0)) for k in (1, 4, 5, 9)
    ]
    assert seconds == [2.0, 2.0, 4.0, 6.0]
    slowed = theory.update_time("k-batch-sync", k=4, workers=4, compute=tacit.Constant(mean_s=0.05), speed=SLOW_ONE)
    assert slowed == pytest.approx(0.1)


@pytest.mark.parametrize(("k", "workers"), [(2, 8), (4, 8), (7, 8), (10, 40)])
def test_k_async_of_mixtures_is_exact_and_slower_than_k_sync(k: int, workers: int):
    """§4.7(1): the reverse of what shifted times do; the slow kind of step is not cancelled."""
    found = theory.update_time("k-async", k=k, workers=workers, compute=MIXTURE)
    assert found > theory.update_time("k-sync", k=k, workers=workers, compute=MIXTURE) * 1.2
    assert found == pytest.approx(Server(MIXTURE, workers).k_async_s(k, 30_000), rel=0.03)


def test_a_mixture_of_equals_is_exponential_also_in_the_chain():
    equals = tacit.HyperExponential(means_s=(2.0, 2.0, 2.0), weights=(0.5, 0.3, 0.2))
    for k in (2, 3, 5):
        found = theory.update_time("k-async", k=k, workers=6, compute=equals)
        assert found == pytest.approx(
            theory.update_time("k-sync", k=k, workers=6, compute=tacit.Exponential(mean_s=2.0))
        )


@pytest.mark.parametrize(("k", "workers"), [(2, 8), (3, 8), (5, 8), (7, 8)])
def test_k_async_of_constant_times_makes_whole_updates_per_step(k: int, workers: int):
    compute = tacit.Constant(mean_s=1.0)
    found = theory.update_time("k-async", k=k, workers=workers, compute=compute)
    assert found == pytest.approx(Server(compute, workers).k_async_s(k, 2000), rel=1e-2)


@pytest.mark.parametrize("compute", [SHIFTED, PARETO, LOG_NORMAL, RECORDED], ids=str)
@pytest.mark.parametrize(("k", "workers", "speed"), [(2, 8, {}), (7, 8, {}), (2, 4, SLOW_ONE)], ids=str)
def test_k_async_lies_between_its_bounds(compute: Delay, k: int, workers: int, speed: dict[int, float]):
    bounds = theory.update_time_bounds("k-async", k=k, workers=workers, compute=compute, speed=speed)
    assert bounds.lower_s < Server(compute, workers, speed).k_async_s(k, 6000) < bounds.upper_s
    with pytest.raises(ValueError, match=r"no known exact time .* it lies between .* use update_time_bounds for both"):
        theory.update_time("k-async", k=k, workers=workers, compute=compute, speed=speed)


def test_new_longer_than_used_bounds_k_async_by_k_sync():
    bounds = theory.update_time_bounds("k-async", k=4, workers=8, compute=SHIFTED)
    assert bounds.upper_s == theory.update_time("k-sync", k=4, workers=8, compute=SHIFTED)
    assert bounds.lower_s == theory.update_time("k-batch-async", k=4, workers=8, compute=SHIFTED)


@pytest.mark.parametrize("k", [4, 14])
def test_k_async_of_many_kinds_falls_back_on_bounds(k: int):
    """New shorter than used: no less than K-sync (the larger for k = 14), and no less than never waiting (for k = 4)."""
    many = tacit.HyperExponential(means_s=tuple(range(1, 9)), weights=(0.125,) * 8)
    bounds = theory.update_time_bounds("k-async", k=k, workers=16, compute=many)
    assert bounds.lower_s == max(
        theory.update_time(kind, k=k, workers=16, compute=many) for kind in ("k-sync", "k-batch-async")
    )
    assert bounds.lower_s < Server(many, 16).k_async_s(k, 4000) < bounds.upper_s


def simulated(k: int, workers: int, compute: Delay, **options) -> float:
    return theory.update_time("k-async", k=k, workers=workers, compute=compute, method="simulated", **options)


NARROW_LOG_NORMAL = tacit.LogNormal(median_s=1.0, sigma=0.7)


@pytest.mark.parametrize(
    ("compute", "k", "seconds"),
    [
        (SHIFTED, 2, 0.127),
        (SHIFTED, 8, 0.561),
        (PARETO, 8, 0.470),
        (NARROW_LOG_NORMAL, 4, 0.168),
        (NARROW_LOG_NORMAL, 16, 0.830),
    ],
)
def test_simulated_k_async_is_what_an_independent_simulation_found(compute: Delay, k: int, seconds: float):
    """Measured elsewhere with other code, 32 workers, given to three digits; the upper bound is 2 to 14 times as long."""
    assert simulated(k, 32, compute) == pytest.approx(seconds, rel=0.012)


@pytest.mark.parametrize("compute", [EXPONENTIAL, MIXTURE, tacit.Constant(mean_s=1.0)], ids=str)
@pytest.mark.parametrize(("k", "workers"), [(1, 8), (2, 8), (5, 8), (8, 8), (2, 32), (16, 32), (3, 100)])
def test_simulated_k_async_agrees_with_exact_values(compute: Delay, k: int, workers: int):
    exact = theory.update_time("k-async", k=k, workers=workers, compute=compute)
    assert simulated(k, workers, compute) == pytest.approx(exact, rel=0.015)


@pytest.mark.parametrize("k", [2, 3])
def test_simulated_k_async_with_unequal_workers(k: int):
    exact = theory.update_time("k-async", k=k, workers=4, compute=EXPONENTIAL, speed=SLOW_ONE)
    assert simulated(k, 4, EXPONENTIAL, speed=SLOW_ONE) == pytest.approx(exact, rel=0.015)
    measured = Server(SHIFTED, 4, SLOW_ONE).k_async_s(k, 20_000)
    assert simulated(k, 4, SHIFTED, speed=SLOW_ONE) == pytest.approx(measured, rel=0.02)


def test_simulated_times_depend_on_the_seed_alone():
    first, again, other = (simulated(3, 8, SHIFTED, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert other == pytest.approx(first, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(draw.sampled_from([SHIFTED, PARETO, LOG_NORMAL, RECORDED]), draw.integers(2, 12), draw.data())
def test_simulated_k_async_lies_between_its_bounds(compute: Delay, workers: int, data: draw.DataObject):
    k = data.draw(draw.integers(1, workers))
    lower_s, upper_s = theory.update_time_bounds("k-async", k=k, workers=workers, compute=compute)
    found = simulated(k, workers, compute)
    assert lower_s * 0.98 <= found <= upper_s * 1.02
    assert found >= theory.update_time("k-batch-async", k=k, workers=workers, compute=compute)


class Uniform(Delay):
    """A user's own times, which can be drawn and nothing else."""

    @property
    def expected_s(self) -> float:
        return 1.0

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        return random.uniform(0.5, 1.5, count)


def test_simulating_needs_no_distribution_function():
    found = theory.update_time("k-async", k=3, workers=8, compute=Uniform(), method="simulated")
    assert found == pytest.approx(Server(Uniform(), 8).k_async_s(3, 20_000), rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "guess"}, "method='guess' is unknown; use 'exact' or 'simulated'"),
        (
            {"kind": "k-sync", "method": "simulated"},
            "method='simulated' is for 'async' and 'k-async'; kind='k-sync' has an exact time, omit method",
        ),
        ({"compute": tacit.SlowSpells(), "method": "simulated"}, "steps that depend on each other"),
        ({"compute": tacit.Pareto(minimum_s=1.0, shape=0.9), "method": "simulated"}, "has no finite mean"),
        ({"seed": -1, "method": "simulated"}, "seed=-1 must be a whole number, at least 0"),
    ],
)
def test_methods_explain_themselves(arguments: dict, message: str):
    given = {"kind": "k-async", "k": 4, "workers": 8, "compute": SHIFTED, **arguments}
    with pytest.raises(ValueError, match=message):
        theory.update_time(given.pop("kind"), **given)


def test_k_async_is_done_when_the_slowest_that_began_together_are():
    bounds = theory.update_time_bounds("k-async", k=2, workers=4, compute=LOG_NORMAL, speed=SLOW_ONE)
    assert bounds.upper_s == theory.order_statistic(LOG_NORMAL, k=2, workers=2, speed={1: 0.2})


def test_a_slow_worker_costs_the_others_nothing_in_async_kinds():
    """Three workers at 50 ms and one at 250 ms: 64 gradients per second; K-sync of three does not wait for the fourth."""
    constant, options = tacit.Constant(mean_s=0.05), {"workers": 4, "speed": SLOW_ONE}
    assert 1 / theory.update_time("async", compute=constant, **options) == pytest.approx(64)
    assert 2 / theory.update_time("k-batch-async", k=2, compute=constant, **options) == pytest.approx(64)
    assert theory.update_time("k-sync", k=3, compute=constant, **options) == pytest.approx(0.05)
    assert theory.update_time("sync", compute=constant, **options) == pytest.approx(0.25)
    exponential = tacit.Exponential(mean_s=0.05)
    assert theory.update_time("k-async", k=2, compute=exponential, **options) == pytest.approx(
        Server(exponential, 4, SLOW_ONE).k_async_s(2, 20_000), rel=0.03
    )


def test_spells_have_long_run_rates_only():
    spell = tacit.SlowSpells(compute=EXPONENTIAL, factor=4.0, healthy_mean_s=10.0, spell_mean_s=10.0)
    assert theory.update_time("k-batch-async", k=2, workers=4, compute=spell) == pytest.approx(spell.expected_s / 2)
    with pytest.raises(ValueError, match="steps that depend on each other"):
        theory.update_time("k-sync", k=2, workers=4, compute=spell)


@pytest.mark.parametrize("compute", [EXPONENTIAL, SHIFTED, LOG_NORMAL, RECORDED], ids=str)
@pytest.mark.parametrize("speed", [{}, SLOW_ONE], ids=str)
def test_a_round_lasts_as_long_as_its_slowest_worker(compute: Delay, speed: dict[int, float]):
    factors = np.array([[speed.get(rank, 1.0)] for rank in range(4)])
    drawn = compute.draw(np.random.default_rng(0), 4 * 6 * 20_000).reshape(-1, 4, 6)
    found = theory.round_time(period=6, workers=4, compute=compute, speed=speed)
    assert found == pytest.approx((drawn / factors).sum(2).max(1).mean(), rel=0.01)
    assert theory.round_time(period=1, workers=4, compute=compute) == theory.update_time(
        "sync", workers=4, compute=compute
    )
    assert theory.round_time(period=7, workers=1, compute=compute) == pytest.approx(7 * compute.expected_s)


def test_freshness_of_the_paper():
    """§4.3 and §4.7(2)."""
    assert theory.fresh_probability("async", workers=8, compute=EXPONENTIAL) == pytest.approx(0.125)
    assert theory.fresh_probability("k-async", k=4, workers=8, compute=EXPONENTIAL) == 0.5
    assert theory.fresh_probability("k-batch-sync", k=4, workers=8, compute=PARETO) == 1.0
    measured = Server(EXPONENTIAL, 8).k_batch_async_freshness(4, 20_000)
    predicted = [
        theory.fresh_probability("k-batch-async", k=4, workers=8, compute=EXPONENTIAL, push=push)
        for push in (1, 2, 3, 4)
    ]
    assert predicted == pytest.approx([1 - (7 / 8) ** push for push in (1, 2, 3, 4)])
    assert measured == pytest.approx(predicted, abs=0.015)
    assert theory.fresh_probability("k-batch-async", k=4, workers=8, compute=EXPONENTIAL) == pytest.approx(
        np.mean(predicted)
    )


def test_p0_is_what_is_proven():
    assert theory.p0("k-sync", k=2, workers=8, compute=SHIFTED) == 1.0
    assert theory.p0("k-async", k=4, workers=8, compute=EXPONENTIAL) == 0.5
    assert theory.p0("k-async", k=8, workers=8, compute=SHIFTED) == 1.0  # which is sync
    assert theory.p0("k-batch-async", k=4, workers=8, compute=EXPONENTIAL) == 0.125
    assert theory.p0("async", workers=8, compute=MIXTURE) == 0.125  # new shorter than used: at least 1/P
    assert theory.p0("k-batch-async", k=4, workers=8, compute=MIXTURE) == 0.0
    assert theory.p0("async", workers=8, compute=SHIFTED) == 0.0
    with pytest.raises(ValueError, match="an exact probability for kind='async' is known only for Exponential times"):
        theory.fresh_probability("async", workers=8, compute=SHIFTED)


HEAVY = tacit.Pareto(minimum_s=1.0, shape=0.9)


def test_infinite_means_are_told_and_waiting_for_fewer_helps():
    assert theory.update_time("k-sync", k=7, workers=8, compute=HEAVY) < 11
    assert theory.update_time("k-batch-sync", k=8, workers=8, compute=HEAVY) < 10
    assert theory.order_statistic(HEAVY, k=8, workers=8) == math.inf
    for kind, k in (("sync", None), ("async", None), ("k-batch-async", 2), ("k-async", 2)):
        with pytest.raises(ValueError, match=rf"makes the expected time of kind='{kind}' .* infinite"):
            theory.update_time(kind, k=k, workers=8, compute=HEAVY)
    with pytest.raises(ValueError, match="no finite mean"):
        theory.round_time(period=4, workers=8, compute=HEAVY)
    with pytest.raises(ValueError, match="too heavy a tail for this sum"):
        theory.round_time(period=50, workers=8, compute=tacit.Pareto(minimum_s=1.0, shape=1.3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "k-asink"}, "kind='k-asink' is unknown; did you mean 'k-async'"),
        ({"k": 9}, "k=9 must not be above workers=8: every worker counts once; use 'k-batch-async' to count batches"),
        ({"k": 0}, "k=0 must be a whole number, at least 1"),
        ({"k": 2.5}, "k=2.5 must be a whole number"),
        ({"k": None}, "k=None: kind='k-async' needs the number of gradients per update"),
        ({"kind": "async"}, "k=4 with kind='async' must be 1 or omitted; 'k-async' takes any"),
        ({"kind": "sync"}, "k=4 with kind='sync' must be 8 or omitted"),
        ({"workers": 0}, "workers=0 must be a whole number"),
        ({"compute": 1.0}, "compute=1.0 must be a delay; try Exponential"),
        ({"speed": {8: 1.0}}, "speed={8: 1.0} names no worker; with workers=8 ranks are 0 to 7"),
        ({"speed": {1: 0.0}}, "speed={1: 0.0} must be positive"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    given = {"kind": "k-async", "k": 4, "workers": 8, "compute": EXPONENTIAL, **arguments}
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        theory.update_time(given.pop("kind"), **given)


def test_other_arguments_explain_themselves_too():
    with pytest.raises(ValueError, match="k=5 must not be above workers=4: there is no 5-th of 4"):
        theory.order_statistic(EXPONENTIAL, k=5, workers=4)
    with pytest.raises(ValueError, match="push=3 must not be above k=2"):
        theory.fresh_probability("k-batch-async", k=2, workers=4, compute=EXPONENTIAL, push=3)
    with pytest.raises(ValueError, match="period=0 must be a whole number"):
        theory.round_time(period=0, workers=4, compute=EXPONENTIAL)


@pytest.mark.parametrize(
    ("initial", "ratio", "root", "quadratic"),
    [
        (1, 2, 1.41, 1.38),
        (1, 4, 2.00, 1.87),
        (1, 9, 3.00, 2.63),
        (1, 20, 4.47, 3.56),
        (2, 4, 4.00, 3.47),
        (2, 9, 6.00, 4.55),
    ],
)
def test_adasync_check_values(initial: int, ratio: float, root: float, quadratic: float):
    """§4.5, P = 8."""
    assert round(theory.adasync_k("square-root", initial, 8, ratio), 2) == root
    assert round(theory.adasync_k("quadratic", initial, 8, ratio), 2) == quadratic


@given(draw.integers(2, 100), draw.data(), draw.floats(1e-6, 1e4))
def test_adasync_k_solves_its_equation(workers: int, data: draw.DataObject, ratio: float):
    initial = data.draw(draw.integers(1, workers - 1))
    k = theory.adasync_k("quadratic", initial, workers, ratio)
    assert k <= workers and theory.adasync_k("quadratic", initial, workers, math.inf) == workers
    assert k**2 == pytest.approx(initial**2 / (workers - initial) * ratio * (workers - k), rel=1e-6)
    assert theory.adasync_k("quadratic", initial, workers, 1.0) == pytest.approx(initial)
    assert theory.adasync_k("square-root", initial, workers, ratio) ** 2 == pytest.approx(initial**2 * ratio)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("square", 1, 8, 2.0), "rule='square' is unknown; did you mean 'square-root'"),
        (("quadratic", 8, 8, 2.0), "initial=8 must be below workers=8 for rule='quadratic'"),
        (("square-root", 9, 8, 2.0), "initial=9 must not be above workers=8"),
        (("square-root", 1, 8, 0.0), "loss_ratio=0 must be positive"),
        (("square-root", 1, 8, math.nan), "loss_ratio=nan must be positive"),
    ],
)
def test_adasync_explains_itself(arguments: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        theory.adasync_k(*arguments)
