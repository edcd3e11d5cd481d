"""Scalers that skip steps: who joins, whose gradient counts, and the loss of a round."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit.strategies.local_sgd.periods import PeriodState, Round
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, close, flat, network, sgd


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
