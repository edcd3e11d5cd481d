"""Laws that tie strategies to each other and to plain SGD."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.core.randomness import Streams

DIGITS = workloads.digits(model="mlp")


def simulate(strategy: tacit.Strategy, workers: int = 4, steps: int = 24, workload=DIGITS, **settings) -> tacit.Run:
    cluster = settings.pop("cluster", tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.02)))
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=settings.pop("seed", 3), **settings)


def test_period_one_equals_all_reduce_for_plain_sgd():
    local, reduced = simulate(tacit.LocalSGD(period=tacit.Every(1))), simulate(tacit.AllReduce())
    torch.testing.assert_close(local.parameters, reduced.parameters, rtol=0, atol=2e-6)
    assert local.summary()["rounds"] == reduced.summary()["rounds"] == 24


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(5))], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_worker_equals_plain_sgd_bit_for_bit(strategy: tacit.Strategy, momentum: float):
    run = simulate(strategy, workers=1, momentum=momentum)

    problem = DIGITS.open(1, Streams(3))
    optimizer = torch.optim.SGD(problem.module.parameters(), lr=0.1, momentum=momentum)
    for _ in range(24):
        optimizer.zero_grad()
        x, y = problem.collate([0], [problem.samplers[0].take(1)[0]])
        problem.module(x[0], y[0]).backward()
        optimizer.step()
    plain = nn.utils.parameters_to_vector(problem.module.parameters()).detach()
    assert torch.equal(run.parameters, plain)


@pytest.mark.parametrize("period", [tacit.Every(5), tacit.VariancePeriod(initial=2)], ids=str)
def test_outer_sgd_with_rate_one_equals_averaging_bit_for_bit(period: tacit.Every):
    averaged = simulate(tacit.LocalSGD(period=period))
    outer = simulate(tacit.LocalSGD(period=period, outer=tacit.OuterSGD(lr=1.0)))
    assert torch.equal(averaged.parameters, outer.parameters)


def test_slow_momentum_equals_outer_momentum_at_a_constant_rate():
    slow = simulate(tacit.LocalSGD(period=tacit.Every(4), outer=tacit.SlowMo(lr=0.8, momentum=0.5)))
    outer = simulate(tacit.LocalSGD(period=tacit.Every(4), outer=tacit.OuterSGD(lr=0.8, momentum=0.5)))
    torch.testing.assert_close(slow.parameters, outer.parameters, rtol=0, atol=1e-5)
    falling = {"schedule": tacit.StepDecay()}
    slow = simulate(tacit.LocalSGD(period=tacit.Every(4), outer=tacit.SlowMo(lr=0.8, momentum=0.5)), **falling)
    outer = simulate(tacit.LocalSGD(period=tacit.Every(4), outer=tacit.OuterSGD(lr=0.8, momentum=0.5)), **falling)
    assert not torch.allclose(slow.parameters, outer.parameters, atol=1e-5)


def test_outer_momentum_matches_torch():
    run = simulate(
        tacit.LocalSGD(period=tacit.Every(6), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)), steps=6
    )
    mean = simulate(tacit.LocalSGD(period=tacit.Every(6)), steps=6).parameters
    start = nn.utils.parameters_to_vector(DIGITS.open(4, Streams(3)).module.parameters()).detach()
    common = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([common], lr=0.7, momentum=0.9, nesterov=True)
    common.grad = start - mean
    optimizer.step()
    torch.testing.assert_close(run.parameters, common.detach(), rtol=0, atol=1e-6)


def test_a_warm_up_averages_after_every_step():
    run = simulate(tacit.LocalSGD(period=tacit.Every(10), warmup_steps=4))
    ends = sorted({e.round for e in run.trace.of("exchange")})
    assert len(ends) == 4 + 2  # steps 1, 2, 3, 4, 14, 24
    post = simulate(tacit.LocalSGD(period=tacit.Every(10), warmup_steps=24))
    every = simulate(tacit.LocalSGD(period=tacit.Every(1)))
    assert torch.equal(post.parameters, every.parameters)


def test_overlap_applies_the_mean_of_the_snapshot_later():
    waiting = simulate(
        tacit.LocalSGD(period=tacit.Every(8)), workload=workloads.quadratic(dimension=5, noise=0.0), lr=0.3
    )
    ahead = simulate(
        tacit.LocalSGD(period=tacit.Every(8), overlap_steps=3),
        workload=workloads.quadratic(dimension=5, noise=0.0),
        lr=0.3,
    )
    # Without noise all workers walk alike, so mean(s) − s is zero and overlap changes nothing but time.
    torch.testing.assert_close(waiting.parameters, ahead.parameters)
    assert ahead.summary()["time_s"] < waiting.summary()["time_s"]


def test_overlap_still_averages():
    run = simulate(tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2), steps=40)
    alone = simulate(tacit.LocalSGD(period=tacit.OneShot()), steps=40)
    assert run.summary()["rounds"] == 10
    assert run.history[-1]["spread"] < alone.history[-1]["spread"] / 2


def test_overlapped_runs_end_with_equal_bits_also_if_the_last_step_starts_a_round():
    """x + (mean − x) differs from the mean in the last bits, and differently on each worker."""
    strategy = tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2)
    cluster = tacit.Cluster(workers=4)
    ends: dict[int, torch.Tensor] = {}

    class Watched(tacit.LocalSGD):
        def finish(self, worker, state):
            super().finish(worker, state)
            ends[worker.rank] = worker.parameters.clone()

    for steps in (40, 41):
        ends.clear()
        watched = Watched(period=strategy.period, overlap_steps=strategy.overlap_steps)
        tacit.simulate(tacit.workloads.digits(model="softmax"), watched, cluster=cluster, steps=steps)
        assert len(ends) == 4 and all(torch.equal(end, ends[0]) for end in ends.values()), steps


def test_overlap_keeps_the_period():
    def starts(strategy: tacit.Strategy) -> list[float]:
        cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1.0))
        run = simulate(strategy, steps=13, cluster=cluster, workload=workloads.quadratic(dimension=3))
        return sorted({e.start_s for e in run.trace.of("exchange")})

    waiting = tacit.LocalSGD(period=tacit.Every(4))
    for overlap in (1, 3, 4):
        assert starts(tacit.LocalSGD(period=tacit.Every(4), overlap_steps=overlap))[:3] == [4.0, 8.0, 12.0]
    assert starts(tacit.LocalSGD(period=tacit.Every(2), overlap_steps=4))[:3] == [2.0, 6.0, 10.0]  # one round at a time
    assert starts(waiting)[1] > 8.0  # it waits for the wire


def test_averages_weigh_workers_by_their_samples():
    """Full gradients of uneven shards: the weighted mean is the gradient of all data, so AllReduce is gradient descent."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, 3, generator=generator, dtype=torch.float64), torch.randn(10, generator=generator)
    workload = workloads.least_squares((x, y), split="contiguous", batch_size=None)
    run = simulate(tacit.AllReduce(), workers=4, steps=5, workload=workload)  # shards of 2, 2, 2 and 4
    point = torch.zeros(3, dtype=torch.float64)
    for _ in range(5):
        point -= 0.1 * x.T @ (x @ point - y.double()) / 10
    torch.testing.assert_close(run.parameters, point)


def test_permuting_ranks_permutes_results():
    """Which rank holds which data does not matter: workers of mirrored shards end with mirrored models."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 3, generator=generator, dtype=torch.float64), torch.randn(12, generator=generator)
    blocks = [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)]
    order = [2, 0, 3, 1]
    permuted = torch.cat([x[blocks[b]] for b in order]), torch.cat([y[blocks[b]] for b in order])

    def run(data: tuple[torch.Tensor, torch.Tensor], speed: dict[int, float]) -> tacit.Run:
        cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.1), speed=speed)
        workload = workloads.least_squares(data, split="contiguous", batch_size=None)
        return simulate(tacit.LocalSGD(period=tacit.Every(3)), workload=workload, steps=7, cluster=cluster)

    first, second = run((x, y), {2: 0.5}), run(permuted, {0: 0.5})  # shard 2 sits on the slow worker both times
    torch.testing.assert_close(first.parameters, second.parameters)
    assert first.summary()["time_s"] == second.summary()["time_s"]

    def computing(run: tacit.Run, rank: int) -> list[tuple[float, float]]:
        return [(e.start_s, e.time_s) for e in run.trace.of("compute") if e.rank == rank]

    for place, block in enumerate(order):
        assert computing(second, place) == computing(first, block)


@pytest.mark.slow
def test_one_shot_averages_once_and_linear_period_ends_on_time():
    assert simulate(tacit.LocalSGD(period=tacit.OneShot())).summary()["rounds"] == 1
    linear = simulate(
        tacit.LocalSGD(period=tacit.LinearPeriod(initial=91, rounds=10)),
        workload=workloads.quadratic(dimension=3),
        steps=5469,
        workers=2,
        timing_only=True,
    )
    assert linear.summary()["rounds"] == 10  # not 11: the last round absorbs what truncation left


@pytest.mark.parametrize("split", ["shuffled", "sorted"])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_the_variance_that_rides_on_a_round_is_the_variance(split: str, shift: float):
    """Against the evaluated spread; far from the origin a difference of raw norms in float32 would be noise."""
    seen: list[float] = []

    class Watching(tacit.VariancePeriod):
        def update(self, state, reduced):  # type: ignore[no-untyped-def]
            seen.append(reduced.variance)
            super().update(state, reduced)

    workload = workloads.digits(model="softmax", split=split)
    start = nn.utils.parameters_to_vector(workload.open(4, Streams(3)).module.parameters()).detach() + shift
    run = simulate(
        tacit.LocalSGD(period=Watching(initial=4, sampling_steps=24)), workload=workload, evaluate_every=1, start=start
    )
    at_rounds = [row["spread"] for row in run.history if row["step"] % 4 == 0 and row["step"] > 0]
    by_round = seen[0::4]  # every rank sees the same
    assert by_round == pytest.approx(at_rounds, rel=1e-3)
    if shift:
        resolution = torch.finfo(torch.float32).eps * float(start.square().sum())
        assert resolution > min(by_round)  # raw norms could not tell this variance from zero


def test_ranks_that_disagree_on_the_period_are_told():
    class Selfish(tacit.Every):
        def init(self, steps):  # type: ignore[no-untyped-def]
            state = super().init(steps)
            Selfish.count = getattr(Selfish, "count", 0) + 1
            state.period += Selfish.count == 1
            return state

    class Aligned(tacit.LocalSGD):
        def _next_due(self, state):  # type: ignore[no-untyped-def]
            return state.last_round + 4  # meets in step, but with another period in mind

    with pytest.raises(tacit.Disagreement, match="ranks disagree on the period"):
        simulate(Aligned(period=Selfish(4)))


def test_loss_periods_need_losses():
    with pytest.raises(tacit.MisplacedCall, match=r"LossPeriod\(initial=8\) needs the loss; call session.observe"):
        simulate(tacit.LocalSGD(period=tacit.LossPeriod(initial=8)), timing_only=True)


@pytest.mark.slow
def test_loss_periods_grow_and_adacomm_shrinks():
    growing = simulate(tacit.LocalSGD(period=tacit.LossPeriod(initial=2)), steps=200)
    shrinking = simulate(tacit.LocalSGD(period=tacit.AdaCommPeriod(initial=16)), steps=200)
    periods = [[e.value for e in run.trace.of("note")] for run in (growing, shrinking)]
    assert periods[0][0] == 2 and max(periods[0]) >= 4
    assert periods[1][0] == 16 and min(periods[1]) <= 6


@pytest.mark.parametrize("bad", [0, -1, 2.5])
def test_a_period_of_less_than_one_says_the_way_out(bad: float):
    with pytest.raises(ValueError, match=rf"period={bad} must be a whole number, at least 1; .* use AllReduce\(\)"):
        tacit.Every(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"period=8 must be a period; .* write Every\(8\)"):
        tacit.LocalSGD(period=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.LocalSGD(period=tacit.VariancePeriod(initial=2)),
        tacit.LocalSGD(period=tacit.Every(3), outer=tacit.SlowMo()),
    ],
    ids=str,
)
def test_a_rate_of_zero_pauses_training_and_breaks_nothing(strategy: tacit.Strategy):
    run = simulate(strategy, steps=20, schedule=lambda step: float(step < 10))
    ten = simulate(strategy, steps=10)
    assert run.status == "finished"
    assert run.history[-1]["loss"] == pytest.approx(ten.history[-1]["loss"], rel=0.3)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_local_sgd_equals_the_loop_one_would_write(engine: str, name: str):
    """Three workers, their own optimizers and batches, averaged every four steps: nothing but torch, against the
    simulator.
    """

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return (
            torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
            if name == "sgd"
            else torch.optim.Adam(parameters, lr=0.01)
        )

    run = simulate(
        tacit.LocalSGD(period=tacit.Every(4)),
        workers=3,
        steps=10,
        optimizer=make,
        engine=engine,
        schedule=lambda step: 1.0 / (1 + step / 5),
    )
    problem = DIGITS.open(3, Streams(3))
    models = [copy.deepcopy(problem.module) for _ in range(3)]
    optimizers = [make(list(model.parameters())) for model in models]
    base = optimizers[0].param_groups[0]["lr"]
    for step in range(10):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.param_groups[0]["lr"] = base / (1 + step / 5)
            x, y = problem.collate([rank], [problem.samplers[rank].take(1)[0]])
            optimizer.zero_grad()
            model(x[0], y[0]).backward()
            optimizer.step()
        if (step + 1) % 4 == 0 or step == 9:
            with torch.no_grad():
                for group in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(group).mean(0)
                    for parameter in group:
                        parameter.copy_(mean)
    plain = nn.utils.parameters_to_vector(models[0].parameters()).detach()
    torch.testing.assert_close(run.parameters, plain, rtol=1e-4, atol=2e-6)


TOP = tacit.TopK(fraction=0.01)


@pytest.mark.parametrize(
    "rules",
    [
        {"compressor": TOP},
        {"compressor": TOP, "outer": tacit.OuterSGD(lr=0.7)},
        {"outer": tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)},
        {"outer": tacit.SlowMo()},
        {"outer": tacit.OuterAdam(lr=0.05), "overlap_steps": 2},
    ],
    ids=str,
)
def test_between_rounds_the_model_of_the_last_round_is_evaluated(rules: dict):
    """The mean of the workers' models is not what a compressed round or an outer optimizer would make of them."""
    run = simulate(tacit.LocalSGD(period=tacit.Every(6), **rules), steps=21, evaluate_every=1)
    losses, late = [row["loss"] for row in run.history], rules.get("overlap_steps", 0)
    held = [losses[: 6 + late], losses[6 + late : 12 + late], losses[12 + late : 18 + late], losses[18 + late : 21]]
    assert all(len({f"{loss:.5g}" for loss in same}) == 1 for same in held)
    assert len({same[0] for same in held} | {losses[21]}) == 5
    assert losses[21] == run.summary()["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        tacit.AllReduce(),
        tacit.LocalSGD(period=tacit.Every(6)),
        tacit.LocalSGD(period=tacit.Every(6), overlap_steps=3),
        tacit.LocalSGD(period=tacit.VariancePeriod(initial=2)),
        tacit.CompressedGradient(compressor=TOP),
        tacit.DPSGD(),
        tacit.CHOCO(),
        tacit.SGP(),
        tacit.SwarmSGD(local_steps=4, blocking=True),
    ],
    ids=str,
)
def test_an_evaluation_shows_what_a_run_that_ends_there_reports(strategy: tacit.Strategy):
    losses = [row["loss"] for row in simulate(strategy, steps=12, evaluate_every=1).history]
    for step in (5, 8, 10):
        assert losses[step] == pytest.approx(simulate(strategy, steps=step).summary()["loss"], rel=1e-5)
