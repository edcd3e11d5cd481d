"""Learners and servers that crash, pause, return and join: every kind goes on as long as its k allows it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tacit
from tests.strategies.server_runs import KINDS, SEVERAL_TENSORS, notes, replayed, simulate, staleness, used

each = pytest.mark.parametrize("kind", KINDS)
WAITING = (tacit.KSync, tacit.KAsync)
FAULTS = {
    "crash": tacit.Crash(rank=2, at_s=3.0),
    "pause": tacit.Pause(rank=2, at_s=3.0, for_s=4.0),
    "return": tacit.Crash(rank=2, at_s=3.0, for_s=4.0),
    "join": tacit.Join(rank=2, at_s=7.0),
}


def users(run: tacit.Run, begin_s: float, end_s: float) -> set[int]:
    """Return whose gradients were used between two moments."""
    return {note.peer for note in notes(run, "staleness") if begin_s < note.time_s < end_s}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@each
def test_a_learner_that_is_away_is_not_missed(kind, fault):
    """Updates go on meanwhile, of what the others push; one who comes back takes part again."""
    run = simulate(kind(k=3), steps=80, lr=0.2, faults=[fault])
    assert run.status == "finished" and run.summary()["steps"] == 80
    ended_s = run.summary()["time_s"]
    assert ended_s > 9 and users(run, 4.5, 6.9) and 2 not in users(run, 4.5, 6.9)
    assert (2 in users(run, 7.0, ended_s)) == (not isinstance(fault, tacit.Crash) or fault.for_s < 10)
    torch.testing.assert_close(run.parameters, replayed(run, lambda *_: 0.2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fault", [FAULTS["crash"], FAULTS["return"], FAULTS["join"]], ids=["crash", "return", "join"])
@pytest.mark.parametrize("kind", WAITING)
def test_k_is_capped_at_the_learners_that_are_left(kind, fault, caplog):
    """Updates wait for four while only four are there, and for all five again once the fifth is back; both are noted,
    the first is logged.
    """
    run = simulate(kind(k=5), steps=60, lr=0.2, faults=[fault])
    assert run.status == "finished" and run.summary()["steps"] == 60
    torch.testing.assert_close(run.parameters, replayed(run, lambda *_: 0.2), rtol=1e-10, atol=1e-12)
    returns = not isinstance(fault, tacit.Crash) or fault.for_s < 10
    last = used(run)[-1]
    assert len(last) == (5 if returns else 4) and (2 in {rank for rank, _ in last}) == returns
    ks = [note.value for note in notes(run, "k")]
    assert sorted(ks[:2]) == [4, 5] and ks[2:] == [5] * returns
    [logged] = caplog.messages
    assert f"worker 2 is missing; {kind.__name__}(k=5) continues with k=4" in logged


@each
def test_when_no_learner_is_left_the_run_ends_with_an_error(kind):
    faults = [tacit.Crash(rank=rank, at_s=2.0 + rank) for rank in range(5)]
    with pytest.raises(
        tacit.PeerLost, match=rf"worker 4 was lost at 6 s and {kind.__name__}\(k=3\) has no learner left"
    ):
        simulate(kind(k=3), steps=400, faults=faults)


LATE = {
    "bounded staleness": (tacit.KAsync(k=1, maximum_staleness=2), 0.5, 1.2, {}),
    "bounded staleness of batches": (tacit.KBatchAsync(k=2, maximum_staleness=2), 0.5, 1.2, {}),
    "staleness rate": (tacit.KAsync(k=1, rate=tacit.StalenessRate(c=0.05)), 1.0, 4.1, {1: 0.25}),
    "all learners": (tacit.KSync(k=3), 0.5, 1.2, {}),
}


@pytest.mark.filterwarnings("ignore::tacit.SpeedBias")  # a slow learner, on split data
@pytest.mark.parametrize(("strategy", "latency_s", "at_s", "speed"), LATE.values(), ids=LATE)
@pytest.mark.parametrize("for_s", [math.inf, 0.1], ids=["for good", "and returns"])
def test_a_push_that_arrives_after_its_learner_was_lost_is_dropped(strategy, latency_s, at_s, speed, for_s):
    """Also where a fresh learner has taken its place meanwhile: the push is not the fresh learner's."""
    crash = tacit.Crash(rank=1, at_s=at_s, for_s=for_s)
    run = simulate(
        strategy, workers=3, compute=tacit.Constant(mean_s=1.0), latency_s=latency_s, speed=speed, faults=[crash]
    )
    assert run.status == "finished" and run.summary()["steps"] == 40
    late = [note for note in notes(run, "staleness") if note.peer == 1 and at_s <= note.time_s <= at_s + latency_s]
    assert not late


def test_a_learner_that_is_lost_again_before_the_server_hears_of_its_return_is_not_waited_for():
    faults = [tacit.Crash(rank=1, at_s=3.2, for_s=1.0), tacit.Crash(rank=1, at_s=4.4)]
    run = simulate(tacit.KSync(k=3), workers=3, compute=tacit.Constant(mean_s=1.0), latency_s=0.5, faults=faults)
    assert run.status == "finished" and {rank for rank, _ in used(run)[-1]} == {0, 2}


@pytest.mark.parametrize("kind", [tacit.KBatchSync, tacit.KBatchAsync])
def test_mini_batches_come_from_whoever_is_left(kind):
    faults = [tacit.Crash(rank=rank, at_s=2.0 + rank) for rank in range(4)]
    run = simulate(kind(k=7), faults=faults)
    assert run.status == "finished" and users(run, 8.0, 1e9) == {4}


@pytest.mark.filterwarnings("ignore::tacit.SpeedBias")  # a slow learner, on split data
def test_a_slow_learner_that_crashes_is_no_longer_waited_for():
    """Bounded staleness: its gradient would have been needed for the next update."""
    bounded = tacit.KAsync(k=1, maximum_staleness=2)
    crash = tacit.Crash(rank=2, at_s=3.0)
    run = simulate(bounded, speed={2: 1e-6}, faults=[crash], steps=60)
    times_s = [note.time_s for note in notes(run, "update")]
    assert sum(time_s < 3.0 for time_s in times_s) <= 2 and len(times_s) == 60
    late = simulate(bounded, faults=[tacit.Join(rank=2, at_s=1e6)], steps=60)  # nor one that is yet to come
    assert late.summary()["time_s"] < 1e3


@each
def test_one_who_returns_computes_at_the_current_model(kind):
    """Its first gradient is as old as its own computation lets it be, not as old as its absence."""
    joined: list[tuple[int, float]] = []

    class Watched(kind):
        def join(self, worker, state):
            super().join(worker, state)
            joined.append((state.versions[0], float(worker.parameters.square().sum())))

    fault = tacit.Crash(rank=2, at_s=3.0, for_s=20.0)
    run = simulate(Watched(k=2), steps=120, lr=0.2, faults=[fault])
    before = sum(note.time_s <= 23.0 for note in notes(run, "update"))
    assert joined[0][0] == before > 20
    first = next(note for note in notes(run, "staleness") if note.peer == 2 and note.time_s > 23.0)
    made = sum(note.time_s < first.time_s for note in notes(run, "update"))
    assert first.value <= made - before


@pytest.mark.slow
@each
def test_everybody_but_one_may_crash_and_return_at_any_time(kind):
    faults = [tacit.Crash(rank=rank, at_s=1.0 + 0.7 * rank, for_s=0.5 + rank) for rank in range(1, 5)]
    strategy = kind(k=1, shards=3, compressor=tacit.TopK(fraction=0.5), model_compressor=tacit.TopK(fraction=0.5))
    run = simulate(strategy, SEVERAL_TENSORS, steps=60, lr=0.05, faults=faults, latency_s=0.05)
    assert run.status == "finished" and min(staleness(run)) >= 0
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_adasync_waits_for_no_more_than_are_left():
    faults = [tacit.Crash(rank=rank, at_s=30.0 + rank) for rank in (1, 2, 3)]
    run = simulate(tacit.AdaSync(tacit.KSync(k=2), every=5), lr=0.3, steps=120, faults=faults)
    assert run.status == "finished" and len(used(run)[-1]) <= 2


# The server.


def crashed(strategy, at_s: float, **settings) -> tacit.Run:
    with pytest.raises(tacit.PeerLost, match=r"the server was lost at .* s and the run needs it;") as caught:
        simulate(strategy, faults=[tacit.Crash(rank=-1, at_s=at_s)], **settings)
    assert caught.value.run is not None
    return caught.value.run


@pytest.mark.slow
@each
def test_a_crashed_server_goes_on_from_its_last_state(kind, tmp_path: Path):
    """Constant times, so that updates after the restart are those of a run that never crashed: model and momentum agree
    to the last bit.
    """
    k = 1 if kind is tacit.KBatchAsync else 4  # alone: others would be at older models when it crashes
    settings = {"lr": 0.05, "momentum": 0.9, "compute": tacit.Constant(mean_s=1.0), "workers": k}
    whole = simulate(kind(k=k), steps=60, **settings)
    broken = crashed(kind(k=k), at_s=30.5, steps=60, **settings)
    made = broken.server[0]["updates"]
    assert broken.status.startswith("failed") and 25 < made < 35
    assert broken.server[0]["state"]["version"] == made == broken.history[-1]["step"]
    broken.save(tmp_path / "broken")
    for start in (broken, tacit.Run.load(tmp_path / "broken")):
        resumed = simulate(kind(k=k), steps=60, start=start, **settings)
        assert resumed.summary()["steps"] == 60 and resumed.history[0]["step"] == made
        torch.testing.assert_close(resumed.parameters, whole.parameters, rtol=0, atol=0)
    without = simulate(kind(k=k), steps=60 - made, start=broken.parameters, **settings)
    assert not torch.equal(without.parameters, whole.parameters)  # the momentum is part of it


def test_shards_and_an_adapted_k_are_part_of_the_servers_state():
    strategy = tacit.AdaSync(tacit.KBatchSync(k=1, shards=2, model_compressor=tacit.TopK(fraction=0.5)), every=5)
    broken = crashed(strategy, 20.0, workload=SEVERAL_TENSORS, steps=500, lr=0.05)
    k = broken.server[0]["state"]["k"]
    assert k > 1
    resumed = simulate(strategy, SEVERAL_TENSORS, steps=broken.server[0]["updates"] + 20, lr=0.05, start=broken)
    assert next(note.value for note in notes(resumed, "k")) == k
    assert resumed.history[-1]["loss"] < broken.history[0]["loss"]


def test_a_server_goes_on_only_as_what_it_was():
    broken = crashed(tacit.KAsync(k=1), 5.0, steps=500)
    with pytest.raises(ValueError, match=r"its server cannot continue as KAsync\(k=2\); pass start=run.parameters"):
        simulate(tacit.KAsync(k=2), start=broken)
    with pytest.raises(ValueError, match="steps=3 includes the updates of start"):
        simulate(tacit.KAsync(k=1), start=broken, steps=3)
