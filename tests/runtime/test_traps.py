"""Where others trip: each known trap of local SGD on real processes, with two to four of them."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

import tacit
from tacit.session import checkpoints
from tacit.strategies.local_sgd.periods import PeriodState, Round
from tests.runtime.processes import Failed, outcomes, together


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def batches(rank: int, count: int, size: int = 5, first: int = 0) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(size, 4, generator=draws) for _ in range(first + count)][first:]


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor], session=None, samples=False
) -> None:
    for x in data:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if session is not None:
            session.observe(loss, samples=len(x) if samples else None)
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# Against torch's own.


def tacit_run(strategy: tacit.Strategy, steps: int) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=steps):
        learn(model, optimizer, batches(tacit.rank(), steps))
    return flat(model)


def ddp_run(steps: int) -> torch.Tensor:
    model = network()
    parallel = DistributedDataParallel(model)
    learn(parallel, sgd(model), batches(tacit.rank(), steps))
    return flat(model)


def averager_run(steps: int) -> torch.Tensor:
    model = network()
    optimizer, averager = sgd(model), PeriodicModelAverager(period=4, warmup_steps=3)
    for x in batches(tacit.rank(), steps):
        learn(model, optimizer, [x])
        averager.average_parameters(model.parameters())
    return flat(model)


def side_by_side(steps: int) -> dict[str, torch.Tensor]:
    """Sessions before, during and after a process group of the user: neither disturbs the other."""
    found = {"all-reduce": tacit_run(tacit.AllReduce(), steps)}
    dist.init_process_group("gloo")
    found |= {"ddp": ddp_run(steps), "averager": averager_run(steps)}
    found["local"] = tacit_run(tacit.LocalSGD(period=tacit.Every(4)), steps)
    dist.all_reduce(torch.ones(1))  # the user's group still works
    dist.destroy_process_group()
    return found


def test_all_reduce_is_ddp_and_local_sgd_is_torchs_averager():
    for result in together(3, side_by_side, 12):
        close(result["all-reduce"], result["ddp"])
        close(result["local"], result["averager"])


def clipped_runs() -> dict[str, torch.Tensor]:
    found = {}
    for name in ("tacit", "ddp"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        [x] = batches(tacit.rank(), 1)
        x = x * (1 + 20 * tacit.rank())  # rank 1 has the large gradient
        if name == "ddp":
            dist.init_process_group("gloo")
            DistributedDataParallel(model)(x).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            dist.destroy_process_group()
        else:
            with tacit.attach(model, optimizer, tacit.AllReduce(), steps=1):
                model(x).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                found["local"] = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
                optimizer.step()
                found["used"] = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        found[name] = flat(model)
    return found


def test_clipping_in_the_loop_acts_on_the_local_gradient_unlike_ddp():
    a, b = together(2, clipped_runs)
    close(a["used"], (a["local"] + b["local"]) / 2)
    assert (a["tacit"] - a["ddp"]).abs().max() > 1e-3


# Buffers.


def batch_norm_run(policy: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = sgd(model)
    data = [x + 3 * tacit.rank() for x in batches(tacit.rank(), 6)]
    calibration = [torch.cat([batches(r, 1)[0] + 3 * r for r in range(tacit.size())])]
    arguments = {"calibration": calibration} if policy == "recalibrate" else {}
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), buffers=policy, **arguments)
    learn(model, optimizer, data[:3])
    before = model[1].running_mean.clone()
    learn(model, optimizer, data[3:4])  # the second round
    after = model[1].running_mean.clone()
    with session.reported_model():
        reported = model[1].running_mean.clone()
    kept = model[1].running_mean.clone()
    learn(model, optimizer, data[4:])
    session.close()
    model.eval()
    return {
        "before": before,
        "after": after,
        "reported": reported,
        "kept": kept,
        "end": model[1].running_mean,
        "count": model[1].num_batches_tracked,
        "output": model(torch.ones(2, 4)).detach(),
        "bytes": session.run.summary()["bytes_sent"],
        "rounds": session.run.summary()["rounds"],
    }


def test_batch_norm_statistics_are_averaged_with_the_models_in_the_same_message():
    a, b = together(2, batch_norm_run, "average")
    assert (a["before"] - b["before"]).abs().max() > 0.1  # their data differ
    close(a["after"], b["after"])
    close(a["end"], b["end"])
    close(a["output"], b["output"])
    assert int(a["count"]) == 6  # counters stay each rank's own
    assert torch.equal(a["kept"], a["after"])  # evaluation leaves no trace


def test_batch_norm_statistics_are_kept_where_asked():
    a, b = together(2, batch_norm_run, "keep")
    assert (a["after"] - b["after"]).abs().max() > 0.1 and (a["end"] - b["end"]).abs().max() > 0.1


def test_batch_norm_statistics_are_measured_again_if_asked():
    a, b = together(2, batch_norm_run, "recalibrate")
    close(a["reported"], b["reported"])
    close(a["output"], b["output"])
    assert (a["after"] - b["after"]).abs().max() > 0.1  # in between each has its own


# Optimizer state.


def moments_run(policy: str) -> list[torch.Tensor]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(3)), optimizer_state=policy)
    learn(model, optimizer, batches(tacit.rank(), 3))
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters() if p in optimizer.state]
    learn(model, optimizer, batches(tacit.rank(), 3, first=3))
    session.close()
    return moments


def moments_runs() -> list[list[torch.Tensor]]:
    return [moments_run(policy) for policy in ("keep", "average", "reset")]


def test_moments_are_kept_averaged_or_reset():
    (a, averaged, reset), (b, averaged_b, reset_b) = together(2, moments_runs)
    assert (a[0] - b[0]).abs().max() > 1e-4
    close(averaged[0], averaged_b[0])
    close(averaged[0], (a[0] + b[0]) / 2)
    assert reset == reset_b == []


# Mixed precision.


def scaler_run(strategy: tacit.Strategy, bad_steps: dict[int, list[int]]) -> dict[str, object]:
    """A GradScaler finds an overflow in the given steps of the given ranks."""
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    trail = []
    session = tacit.attach(model, optimizer, strategy)
    for number, x in enumerate(batches(tacit.rank(), 6)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if number in bad_steps.get(tacit.rank(), ()):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        before = flat(model)
        scaler.step(optimizer)
        scaler.update()
        trail.append((before, flat(model), scaler.get_scale()))
    session.close()
    return {"end": flat(model), "trail": trail, "steps": session.step}


def test_a_scaler_that_skips_on_one_rank_joins_the_collective_and_the_others_gradients_count():
    a, b = together(2, scaler_run, tacit.AllReduce(), {1: [2]})
    assert torch.equal(a["end"], b["end"]) and torch.isfinite(a["end"]).all()
    assert a["trail"][2][2] == 4.0 and b["trail"][2][2] == 2.0  # each scaler minds its own
    reference = network()
    optimizer = sgd(reference)
    for number, (x, y) in enumerate(zip(batches(0, 6), batches(1, 6), strict=True)):
        optimizer.zero_grad()
        losses = [reference(x).square().mean()] + ([reference(y).square().mean()] if number != 2 else [])
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    close(a["end"], flat(reference))


def test_a_step_that_all_scalers_skip_changes_nothing():
    a, b = together(2, scaler_run, tacit.AllReduce(), {0: [2], 1: [2]})
    assert torch.equal(a["trail"][2][0], a["trail"][2][1])
    assert torch.equal(a["end"], b["end"])


@pytest.mark.parametrize(
    "feedback", [tacit.EF21(), tacit.EF21Plus(), tacit.ErrorFeedback(), tacit.NoFeedback()], ids=str
)
def test_a_scaler_that_skips_leaves_compressed_ranks_agreeing(feedback):
    """On one rank: the others continue with its last estimate.

    On all: nothing changes. Models stay equal to the last bit.
    """
    strategy = tacit.CompressedGradient(compressor=tacit.TopK(k=9), feedback=feedback)
    a, b = together(2, scaler_run, strategy, {0: [4], 1: [0, 2, 4]})
    for (_, after, _), (_, other, _) in zip(a["trail"], b["trail"], strict=True):
        assert torch.equal(after, other) and torch.isfinite(after).all()
    before, after, _ = a["trail"][4]
    assert torch.equal(before, after)
    assert not torch.equal(a["trail"][2][0], a["trail"][2][1])
    assert torch.equal(a["end"], b["end"])


def test_a_skipped_step_changes_nothing_locally_in_local_sgd_and_counts():
    a, b = together(2, scaler_run, tacit.LocalSGD(period=tacit.Every(3)), {1: [1]})
    assert torch.equal(b["trail"][1][0], b["trail"][1][1]) and not torch.equal(a["trail"][1][0], a["trail"][1][1])
    close(a["end"], b["end"])
    assert a["steps"] >= 6


class Watched(tacit.Every):
    """A fixed period that asks for losses and records what each round brings."""

    needs_loss = True

    def update(self, state: PeriodState, reduced: Round) -> None:
        self.__dict__.setdefault("seen", []).append(reduced.first_loss)


def told_run(bad_steps: dict[int, list[int]], counts: list[int], sizes: list[int] | None = None) -> list[float | None]:
    """Rank r tells the loss 10 r + k in its k-th step, counted from 1; return what the rounds of two steps brought."""
    model, period, me = network(), Watched(2), tacit.rank()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=period), steps=max(counts), timeout_s=20) as session:
        for step, x in enumerate(batches(me, counts[me]), 1):
            optimizer.zero_grad()
            scale = float("inf") if step in bad_steps.get(me, ()) else 1.0
            scaler.scale(model(x).square().mean() * scale).backward()
            session.observe(10.0 * me + step, samples=sizes[me] if sizes else None)
            scaler.step(optimizer)
            scaler.update()
    return period.__dict__["seen"]


def test_the_loss_of_a_round_is_the_mean_over_the_ranks_that_have_one():
    """A rank that skips all steps of a period has none, nor has one whose data has ended.

    Ranks weigh what they weigh in the round.
    """
    for full, some, one, early, sizes in together(2, told_runs):
        assert full == [6, 8, 10]
        assert some == [pytest.approx((1 + 12 / 2) / 1.5), None, 10]  # rank 1 had data in one of two steps
        assert one == [1, 8, 10]
        assert early == [6, 3, 5]
        assert sizes == [(1 + 3 * 11) / 4]


def told_runs() -> list[list[float | None]]:
    return [
        told_run({}, [6, 6]),
        told_run({0: [3, 4], 1: [1, 3, 4]}, [6, 6]),
        told_run({1: [1, 2]}, [6, 6]),
        told_run({}, [6, 2]),
        told_run({}, [2, 2], [1, 3]),
    ]


# Micro-batches.


def accumulating_run() -> dict[str, object]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), steps=6) as session:
        data = batches(tacit.rank(), 24)
        for start in range(0, 24, 4):
            optimizer.zero_grad()
            for x in data[start : start + 4]:
                loss = model(x).square().mean() / 4
                loss.backward()
                session.observe(loss * 4)
            optimizer.step()
    return {"end": flat(model), "summary": session.run.summary(), "rows": len(session.run.history)}


def test_micro_batches_are_not_steps():
    a, b = together(2, accumulating_run)
    assert a["summary"]["steps"] == 6 and a["summary"]["rounds"] == 3 and a["rows"] == 6
    assert torch.equal(a["end"], b["end"])


# Uneven data.


def uneven_run(strategy: tacit.Strategy, counts: list[int], steps: int | None, sizes: list[int]) -> dict[str, object]:
    model = network()
    optimizer, me = sgd(model), tacit.rank()
    with tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=20) as session:
        learn(model, optimizer, batches(me, counts[me], size=sizes[me]), session, samples=True)
    return {"end": flat(model), "steps": session.run.summary()["steps"]}


COMPRESSED = [
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21()),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Plus()),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Momentum(eta=0.3)),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Partial(probability=0.5)),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Bidirectional(master=tacit.QSGD(bits=8))),
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()),
    tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback()),
    tacit.CompressedGradient(compressor=tacit.LowRank(rank=1), feedback=tacit.EF21()),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(k=5)),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(k=5), feedback=tacit.EF21()),
]
UNEVEN = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.LocalSGD(period=tacit.Every(3), overlap_steps=2),
    tacit.LocalSGD(period=tacit.LossPeriod(initial=2)),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=2, sampling_steps=4)),
    tacit.LocalSGD(period=tacit.OneShot()),
    tacit.LocalSGD(period=tacit.Every(2), outer=tacit.SlowMo()),
    tacit.LocalSGD(period=tacit.Every(3), weights="equal"),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), weights="equal"),
    *COMPRESSED,
]


def uneven_runs(steps: int | None) -> list[dict[str, object]]:
    return [uneven_run(strategy, [13, 5, 10], steps, [5, 5, 5]) for strategy in UNEVEN]


@pytest.mark.parametrize("steps", [None, 13])
def test_ranks_whose_data_ends_early_keep_joining_and_no_rank_hangs(steps):
    for results in zip(*together(3, uneven_runs, steps), strict=True):
        assert results[0]["steps"] == 13
        for other in results[1:]:
            close(other["end"], results[0]["end"], 1e-5)


def test_batches_of_different_sizes_weigh_what_they_hold():
    a, b = together(2, uneven_run, tacit.AllReduce(), [1, 1], 1, [6, 2])
    model = network()
    optimizer = sgd(model)
    x, y = batches(0, 1, size=6)[0], batches(1, 1, size=2)[0]
    learn(model, optimizer, [torch.cat([x, y])])
    close(a["end"], flat(model))
    close(b["end"], flat(model))


def skipping_run(strategy: tacit.Strategy) -> list[torch.Tensor]:
    """Rank 0 has four batches of 6. Rank 1 has three batches of 2, and its GradScaler skips the second."""
    model, me = network(), tacit.rank()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with tacit.attach(model, optimizer, strategy, steps=4, timeout_s=20) as session:
        for step, x in enumerate(batches(me, 4 - me, size=6 - 4 * me)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss * (float("inf") if me == 1 and step == 1 else 1.0)).backward()
            session.observe(loss, samples=len(x))
            scaler.step(optimizer)
            scaler.update()
    return flat(model)


@pytest.mark.parametrize(
    ("strategy", "keeps_estimates"),
    [
        (tacit.AllReduce(weights="equal"), False),
        (tacit.CompressedGradient(compressor=tacit.Dense(), feedback=tacit.NoFeedback(), weights="equal"), False),
        (tacit.CompressedGradient(compressor=tacit.Dense(), feedback=tacit.EF21(), weights="equal"), True),
        (tacit.CompressedGradient(compressor=tacit.Dense(), feedback=tacit.EF21Plus(), weights="equal"), True),
    ],
    ids=str,
)
def test_equal_weights_leave_out_who_skips_and_who_has_no_data_left(strategy, keeps_estimates):
    """EF21 continues with the last estimate of a rank that skips; nothing stays of one whose data has ended."""
    reference = network()
    optimizer = sgd(reference)
    theirs = None
    for step, x in enumerate(batches(0, 4, size=6)):
        mine = torch.autograd.grad(reference(x).square().mean(), list(reference.parameters()))
        if step in (0, 2):
            y = batches(1, 3, size=2)[step]
            theirs = torch.autograd.grad(reference(y).square().mean(), list(reference.parameters()))
        elif step == 3 or not keeps_estimates:
            theirs = None
        for parameter, own, other in zip(reference.parameters(), mine, theirs or mine, strict=True):
            parameter.grad = (own + other) / 2
        optimizer.step()
    for end in together(2, skipping_run, strategy):
        close(end, flat(reference))


# Checkpoints.


def interrupted_run(folder: str, strategy: tacit.Strategy, stop: int, steps: int) -> torch.Tensor:
    """Train to ``stop``, checkpoint, continue for steps that will be lost, and leave."""
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, steps=steps, seed=3)
    learn(model, optimizer, batches(tacit.rank(), stop), session)
    session.checkpoint(folder)
    learn(model, optimizer, batches(tacit.rank(), 1, first=stop), session)
    session._end.fail(KeyboardInterrupt())
    return flat(model)


def resumed_run(folder: str, strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, dict[str, int]]:
    model = network(seed=9)  # whatever it is: the checkpoint knows better
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, steps=steps, seed=3)
    done = session.resume(folder)
    learn(model, optimizer, batches(tacit.rank(), steps - done, first=done), session)
    session.close()
    return flat(model), counts(session.run)


def counts(run: tacit.Run) -> dict[str, int]:
    summary = run.summary()
    return {name: summary[name] for name in ("steps", "rounds", "bytes_sent")} | {"rows": len(run.history)}


def straight_run(strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, dict[str, int]]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=steps, seed=3) as session:
        learn(model, optimizer, batches(tacit.rank(), steps), session)
    return flat(model), counts(session.run)


def with_and_without_interruption(
    folder: str, strategies: list[tacit.Strategy]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = []
    for number, strategy in enumerate(strategies):
        place = f"{folder}/{number}"
        straight = straight_run(strategy, 17)
        interrupted_run(place, strategy, 8, 17)
        pairs.append((straight, resumed_run(place, strategy, 17)))
    return pairs


def test_resuming_in_the_middle_of_a_period_is_bit_exact(tmp_path):
    strategies = [
        tacit.AllReduce(),
        tacit.LocalSGD(period=tacit.Every(5)),
        tacit.LocalSGD(period=tacit.Every(7), overlap_steps=4),
        tacit.LocalSGD(period=tacit.VariancePeriod(initial=3), outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
        tacit.LocalSGD(period=tacit.LossPeriod(initial=3), outer=tacit.OuterAdam()),
        *COMPRESSED,
    ]
    for pairs in together(2, with_and_without_interruption, str(tmp_path), strategies):
        for strategy, (straight, resumed) in zip(strategies, pairs, strict=True):
            assert torch.equal(straight[0], resumed[0]), strategy
            assert straight[1] == resumed[1], strategy


def test_resuming_with_three_workers_instead_of_four(tmp_path):
    strategy = tacit.LocalSGD(period=tacit.Every(7), overlap_steps=3)
    models = together(4, checkpointed_models, str(tmp_path), strategy, 8)
    results = together(3, started_from, str(tmp_path), strategy, 17)
    for start, end in results:
        close(start, torch.stack(models).mean(0))
        close(end, results[0][1])


def test_resuming_compressed_runs_with_another_number_of_workers(tmp_path):
    """What is believed of the mean gradient survives; all ranks agree afterwards."""
    runs = [(str(tmp_path / str(number)), strategy) for number, strategy in enumerate(COMPRESSED[:4])]
    models = [*zip(*together(3, checkpointed_models_of, runs), strict=True)]
    for size in (2, 4):
        for (_, strategy), model, results in zip(
            runs, models, zip(*together(size, started_from_each, runs), strict=True), strict=True
        ):
            for start, end in results:
                close(start, torch.stack(model).mean(0))
                assert torch.equal(end, results[0][1]), strategy


def checkpointed_models_of(runs: list[tuple[str, tacit.Strategy]]) -> list[torch.Tensor]:
    return [checkpointed_models(folder, strategy, 8) for folder, strategy in runs]


def started_from_each(runs: list[tuple[str, tacit.Strategy]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [started_from(folder, strategy, 17) for folder, strategy in runs]


def checkpointed_models(folder: str, strategy: tacit.Strategy, stop: int) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, seed=3)
    learn(model, optimizer, batches(tacit.rank(), stop), session)
    session.checkpoint(folder)
    own = flat(model)
    session.close()
    return own


def started_from(folder: str, strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = network(seed=9)
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, seed=3)
    assert session.resume(folder) == 8
    start = flat(model)
    learn(model, optimizer, batches(tacit.rank(), steps - 8, first=8), session)
    session.close()
    return start, flat(model)


def killed_while_writing(folder: str) -> None:
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(5)), timeout_s=5)
    learn(model, optimizer, batches(tacit.rank(), 3), session)
    session.checkpoint(folder)
    learn(model, optimizer, batches(tacit.rank(), 1, first=3), session)
    if tacit.rank() == 1:
        torch.save = lambda shard, file: (
            file.write(b"half a shard"),
            file.flush(),
            os.kill(os.getpid(), signal.SIGKILL),
        )
    session.checkpoint(folder)


def test_a_checkpoint_that_dies_half_way_leaves_the_previous_one(tmp_path):
    first, second = outcomes(2, killed_while_writing, str(tmp_path))
    assert second.name == "Died" and first.name == "PeerLost" and "worker 1 was lost" in first.text
    assert checkpoints.step_of(tmp_path) == 3
    assert len(checkpoints.read(tmp_path, 0, 3)) == 2  # both shards are whole


def local_state() -> bool:
    """Only rank 0 asks: no rank may wait for another."""
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2), steps=10) as session:
        learn(model, optimizer, batches(tacit.rank(), 5), session)
        if tacit.rank() == 0:
            state = session.state_dict()
            assert state["meter"]["step"] == 5
        learn(model, optimizer, batches(tacit.rank(), 5, first=5), session)
    return True


def test_state_dict_never_communicates():
    assert together(2, local_state) == [True, True]


def test_a_shard_that_carries_code_is_not_executed(tmp_path):
    together(1, checkpointed_models, str(tmp_path), tacit.AllReduce(), 2)
    shard = next(tmp_path.rglob("rank-0.pt"))
    torch.save({"model": Bomb(str(tmp_path / "exploded"))}, shard)
    with pytest.raises(tacit.TacitError, match="cannot be read"):
        checkpoints.read(tmp_path, 0, 1)
    assert not (tmp_path / "exploded").exists()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


# Agreement.


def disagreeing_run(what: str) -> None:
    me = tacit.rank()
    model = network()
    if what == "structure" and me == 2:
        model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
    if what == "frozen" and me == 1:
        model[0].weight.requires_grad_(False)
    if what == "dtype" and me == 1:
        model.double()
    cls = torch.optim.Adam if what == "optimizer" and me == 1 else torch.optim.SGD
    optimizer = cls([p for p in model.parameters() if p.requires_grad], lr=0.2 if what == "lr" and me == 2 else 0.1)
    period = tacit.Every(5 if what == "strategy" and me == 1 else 4)
    tacit.attach(model, optimizer, tacit.LocalSGD(period=period), seed=int(what == "seed" and me == 1)).close()


def all_disagreements(names: list[str]) -> list[str]:
    texts = []
    for name in names:
        try:
            disagreeing_run(name)
        except tacit.Disagreement as error:
            texts.append(str(error))
    return texts


def test_ranks_that_differ_are_told_the_first_difference_on_every_rank():
    expected = {
        "structure": r"parameters, 0.weight is \(9, 4\)",
        "frozen": "parameters, 0.weight is .*frozen on rank 1",
        "dtype": "float64 .* on rank 1",
        "optimizer": "optimizer is Adam on rank 1, SGD on rank 0",
        "lr": "optimizer's groups, 0, lr is 0.2 on rank 2",
        "strategy": r"strategy is LocalSGD\(period=Every\(5\)\) on rank 1",
        "seed": "seed is 1 on rank 1, 0 on rank 0",
    }
    for texts in together(3, all_disagreements, list(expected)):
        assert len(texts) == len(expected)
        for text, pattern in zip(texts, expected.values(), strict=True):
            assert re.search(pattern, text), text


def starts_differ() -> torch.Tensor:
    model = network(seed=tacit.rank())
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.AllReduce()):
        return flat(model)


def test_all_ranks_start_from_rank_0():
    first, second = together(2, starts_differ)
    assert torch.equal(first, second) and torch.equal(first, flat(network()))


# Lost workers.


def dying_run(folder: str, how: str) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(
        model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), rescue_folder=folder or None, timeout_s=2
    ) as session:
        for number, x in enumerate(batches(tacit.rank(), 9)):
            if number == 5 and tacit.rank() == 1:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "raises":
                    raise ZeroDivisionError("a bug in the loop")
                if how == "hangs":
                    time.sleep(6)
            learn(model, optimizer, [x], session)


def test_a_killed_worker_ends_the_run_with_its_name_and_a_checkpoint_of_the_others(tmp_path):
    first, second, third = outcomes(3, dying_run, str(tmp_path), "killed")
    assert second.name == "Died"
    for survivor in (first, third):
        assert (
            survivor.name == "PeerLost"
            and "worker 1 was lost" in survivor.text
            and "exited without reporting an error" in survivor.text
        )
        assert "The state of the remaining workers is in" in survivor.text
    assert checkpoints.step_of(tmp_path) == 6
    assert len(checkpoints.read(tmp_path, 0, 3)) == 2
    assert not any(isinstance(r, Failed) for r in outcomes(3, rescued_run, str(tmp_path)))


def rescued_run(folder: str) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        assert session.resume(folder) == 6
        begun = flat(model)
        learn(model, optimizer, batches(tacit.rank(), 3, first=6), session)
    return begun


def ending_run(folder: str, asked: tuple[int, ...]) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), rescue_folder=folder) as session:
        for number, x in enumerate(batches(tacit.rank(), 9)):
            if number == 4 and tacit.rank() in asked:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # by a scheduler and by torchrun
            if number == 4 and tacit.rank() == 0:
                time.sleep(0.3)  # the others wait in the round meanwhile
            learn(model, optimizer, [x], session)


def rescued_and_straight(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    return rescued_run(folder), six_steps()


def six_steps() -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        learn(model, optimizer, batches(tacit.rank(), 6), session)
    return flat(model)


@pytest.mark.parametrize("asked", [(0,), (2,), (0, 1, 2)], ids=str)
def test_a_run_that_is_asked_to_end_leaves_a_checkpoint_and_goes_on_from_the_round_it_ended_in(tmp_path, asked):
    ended = outcomes(3, ending_run, str(tmp_path), asked)
    assert [one.name for one in ended] == ["Interrupted"] * 3
    assert all("The state of all workers is in" in one.text for one in ended)
    assert checkpoints.step_of(tmp_path) == 6
    assert len(checkpoints.read(tmp_path, 0, 3)) == 3
    for begun, played in together(3, rescued_and_straight, str(tmp_path)):
        torch.testing.assert_close(begun, played)


def test_an_error_on_one_rank_is_told_on_the_others(tmp_path):
    first, second, third = outcomes(3, dying_run, "", "raises")
    assert second.name == "ZeroDivisionError"
    assert first.name == third.name == "PeerLost" and "ZeroDivisionError: a bug in the loop" in first.text


def test_a_worker_that_does_not_come_is_named_at_the_time_out(tmp_path):
    first, _second, third = outcomes(3, dying_run, "", "hangs")
    assert first.name == third.name == "TimedOut"
    assert "no answer from worker 1 within timeout_s=2" in first.text


def threads_left() -> list[str]:
    model = network()
    optimizer = sgd(model)
    before = {t.name for t in threading.enumerate()}
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))):
        learn(model, optimizer, batches(tacit.rank(), 3))
    return sorted({t.name for t in threading.enumerate()} - before)


def test_no_thread_is_left():
    assert together(2, threads_left) == [[], []]


# Evaluation in mid-run.


def evaluating_run() -> dict[str, torch.Tensor]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(5)), steps=9) as session:
        learn(model, optimizer, batches(tacit.rank(), 3))
        own = flat(model)
        with session.reported_model() as reported:
            seen = flat(reported)
        assert torch.equal(flat(model), own)
        learn(model, optimizer, batches(tacit.rank(), 6, first=3))
    return {"own": own, "seen": seen, "end": flat(model)}


def test_the_reported_model_is_the_mean_and_looking_changes_nothing():
    a, b = together(2, evaluating_run)
    close(a["seen"], (a["own"] + b["own"]) / 2)
    assert torch.equal(a["seen"], b["seen"])
    assert torch.equal(a["end"], together(2, tacit_run, tacit.LocalSGD(period=tacit.Every(5)), 9)[0])


def evaluating_after_a_round(strategy: tacit.LocalSGD) -> dict[str, torch.Tensor]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=9) as session:
        learn(model, optimizer, batches(tacit.rank(), 5))
        after_the_round = flat(model)
        learn(model, optimizer, batches(tacit.rank(), 2, first=5))
        own = flat(model)
        with session.reported_model() as reported:
            seen = flat(reported)
        learn(model, optimizer, batches(tacit.rank(), 2, first=7))
    return {"round": after_the_round, "own": own, "seen": seen, "end": flat(model)}


@pytest.mark.parametrize(
    "rules",
    [{"compressor": tacit.TopK(fraction=0.2)}, {"outer": tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)}],
    ids=str,
)
def test_between_rounds_that_bring_no_mean_the_last_rounds_model_is_reported(rules: dict):
    strategy = tacit.LocalSGD(period=tacit.Every(5), **rules)
    a, b = together(2, evaluating_after_a_round, strategy)
    close(a["seen"], a["round"])
    assert torch.equal(a["seen"], b["seen"])
    assert not torch.equal(a["own"], b["own"])
    assert torch.equal(a["end"], together(2, tacit_run, strategy, 9)[0])
