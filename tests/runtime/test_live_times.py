"""Compute and hook seconds of all ranks, sent with the rounds of a run in progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tacit
from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.runtime.live_times import LiveTimes
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, flat, learn, network, sgd

STEPS = 6
QUANTIZED = {"compressor": tacit.QSGD(bits=8), "feedback": tacit.NoFeedback()}
DENSE = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(3), overlap_steps=1),
]
MESSAGES = [
    tacit.CompressedGradient(**QUANTIZED, aggregate="scatter"),
    tacit.LocalSGD(period=tacit.Every(3), **QUANTIZED, aggregate="gather"),
]


def three_ranks() -> tuple[list[Any], list[LiveTimes]]:
    steps = [SimpleNamespace(computed=0, compute_s=0.0, hook_s=0.0) for _ in range(3)]
    return steps, [LiveTimes(step, rank, 3) for rank, step in enumerate(steps)]


def computed(step: Any, steps: int, compute_s: float, hook_s: float) -> None:
    step.computed, step.compute_s, step.hook_s = (
        step.computed + steps,
        step.compute_s + compute_s,
        step.hook_s + hook_s,
    )


def test_the_sum_of_an_all_reduce_holds_the_times_of_all_ranks() -> None:
    steps, lives = three_ranks()
    for repeat in (1, 2):
        for rank, step in enumerate(steps):
            computed(step, 2, repeat * (rank + 1.0), 0.25 * rank)
        places = [torch.full((live.places,), 7.0) for live in lives]
        for live, mine in zip(lives, places, strict=True):
            live.fill(mine)
        for live in lives:
            live.read(sum(places))  # type: ignore[arg-type]
            expected = (2, (repeat * 1.0, repeat * 2.0, repeat * 3.0), (0.0, 0.25, 0.5))
            assert live.latest == expected


def test_times_behind_messages_come_off_again() -> None:
    steps, lives = three_ranks()
    computed(steps[1], 4, 0.5, 0.125)
    received = [b"message" + live.tail() for live in lives]
    assert lives[1].read_tails(received) == [b"message"] * 3
    assert lives[1].latest == (4, (0.0, 0.5, 0.0), (0.0, 0.125, 0.0))
    with pytest.raises(tacit.BadMessage, match="without the 16 bytes of live=True"):
        lives[1].read_tails([b"message", b"short", b""])


def test_a_second_exchange_of_a_round_adds_to_the_first() -> None:
    steps, lives = three_ranks()
    computed(steps[0], 3, 1.0, 0.5)
    lives[0].read_tails([live.tail() for live in lives])
    computed(steps[0], 0, 0.0, 0.25)
    lives[0].read_tails([live.tail() for live in lives])
    assert lives[0].latest == (3, (1.0, 0.0, 0.0), (0.75, 0.0, 0.0))


def run_all() -> list[dict[str, Any]]:
    """Run each strategy without and with live times; then let rank 1 ask for them alone."""
    found = []
    for strategy in DENSE + MESSAGES:
        for live in (False, True):
            model = network()
            optimizer = sgd(model)
            with tacit.attach(model, optimizer, strategy, steps=STEPS, live=live) as session:
                learn(model, optimizer, batches(tacit.rank(), STEPS))
            exchanges = [event for event in session.run.trace.of("exchange") if event.rank == tacit.rank()]
            found.append(
                {
                    "model": flat(model),
                    "bytes": [event.size_bytes for event in exchanges],
                    "live": session.live_round,
                }
            )
    model = network()
    with pytest.raises(tacit.Disagreement, match="live") as caught:
        tacit.attach(model, sgd(model), tacit.AllReduce(), live=tacit.rank() == 1)
    found.append({"error": str(caught.value)})
    return found


def test_rounds_carry_the_times_of_all_ranks_and_nothing_else_changes() -> None:
    results = together(2, run_all)
    parameters, single = network(), 4
    numbers = sum(p.numel() for p in parameters.parameters())
    for index, strategy in enumerate(DENSE + MESSAGES):
        (plain, live), (_, other) = (result[2 * index : 2 * index + 2] for result in results)
        torch.testing.assert_close(live["model"], plain["model"], rtol=0, atol=0)
        assert plain["live"] is None
        assert live["live"] == other["live"]
        assert live["live"].steps in (1, 2, 3)
        assert len(live["live"].compute_s) == len(live["live"].hook_s) == 2
        assert all(seconds > 0 for seconds in live["live"].compute_s), strategy
        more = [with_times - without for without, with_times in zip(plain["bytes"], live["bytes"], strict=True)]
        if strategy in DENSE:
            statistics = 1 if isinstance(strategy, tacit.LocalSGD) else 0
            before, after = (numbers + 1 + statistics + places for places in (0, 4))
            sizes = [ring_all_reduce_bytes(n, single, 2)[0] for n in (before, after)]
            assert set(more) == {sizes[1] - sizes[0]}
        else:
            assert set(more) <= {16, 0}  # 0: replies of a scattered exchange
            assert 16 in more
    assert "live" in results[0][-1]["error"]


def test_a_run_of_one_process_has_no_rounds() -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=2, live=True) as session:
        learn(model, optimizer, batches(0, 2))
    assert session.live_round is None
