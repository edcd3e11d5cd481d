"""Data that ends earlier on some ranks, and batches of different sizes."""

from __future__ import annotations

import pytest
import torch

import tacit
from tests.runtime.processes import together
from tests.runtime.small_runs import COMPRESSED, batches, close, flat, learn, network, sgd


def uneven_run(strategy: tacit.Strategy, counts: list[int], steps: int | None, sizes: list[int]) -> dict[str, object]:
    model = network()
    optimizer, me = sgd(model), tacit.rank()
    with tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=20) as session:
        learn(model, optimizer, batches(me, counts[me], size=sizes[me]), session, samples=True)
    return {"end": flat(model), "steps": session.run.summary()["steps"]}


UNEVEN = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.LocalSGD(period=tacit.Every(3), overlap_steps=2),
    tacit.LocalSGD(period=tacit.Every(4), fragments=3, overlap_steps=1, mix=0.5),
    tacit.LocalSGD(period=tacit.LossPeriod(initial=2)),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=2, sampling_steps=4)),
    tacit.LocalSGD(period=tacit.PacePeriod(communication=0.3, maximum=4)),
    tacit.LocalSGD(period=tacit.OneShot()),
    tacit.LocalSGD(period=tacit.Every(2), outer=tacit.SlowMo()),
    tacit.LocalSGD(period=tacit.Every(3), weights="equal"),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), weights="equal"),
    tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(3)), groups=2),
    tacit.Hierarchical(
        inner=tacit.LocalSGD(period=tacit.Every(2)),
        outer=tacit.LocalSGD(period=tacit.Every(5), compressor=tacit.TopK(k=5)),
        groups=[[0], [2, 1]],
    ),
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
