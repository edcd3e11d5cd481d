"""Faults as values: what each does to time, and how a strategy that cannot survive one says so."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

import tacit
from tacit import workloads
from tacit.core.strategy import takes_joiners
from tacit.testing.toys import AskAround, Ball, FirstOfAll, PingPong
from tests.strategy_table import TABLE

QUADRATIC = workloads.quadratic(dimension=6)
LOCAL = tacit.LocalSGD(period=tacit.Every(4))


def simulate(
    strategy: tacit.Strategy = LOCAL, steps: int = 12, workers: int = 3, seed: int = 1, **cluster
) -> tacit.Run:
    cluster.setdefault("compute", tacit.Constant(mean_s=1.0))
    cluster.setdefault("latency_s", 0.0)
    cluster.setdefault("bandwidth_bytes_per_s", math.inf)
    return tacit.simulate(
        QUADRATIC, strategy, cluster=tacit.Cluster(workers=workers, **cluster), steps=steps, seed=seed
    )


def test_a_crash_ends_a_collective_run_in_virtual_time_and_says_who_was_lost():
    with pytest.raises(
        tacit.PeerLost, match=r"worker 1 was lost at 5\.5 s and all-reduce 2 needs every worker"
    ) as caught:
        simulate(faults=[tacit.Crash(rank=1, at_s=5.5)])
    run = caught.value.run
    assert run is not None and run.status.startswith("failed: worker 1 was lost")
    assert (run.history[-1]["step"], run.history[-1]["time_s"]) == (7, 7.0)  # what there was is kept, of those who live
    assert max(e.time_s for e in run.trace) == 8.0  # survivors notice when they next want to talk
    assert [e.label for e in run.trace.of("fault")] == ["crash"]
    assert not [e for e in run.trace.of("compute") if e.rank == 1 and e.time_s > 5.5]


def test_those_who_wait_in_a_round_are_told_of_a_crash_at_once():
    with pytest.raises(tacit.PeerLost, match=r"worker 2 was lost at 4\.5 s") as caught:
        simulate(faults=[tacit.Crash(rank=2, at_s=4.5)], speed={2: 0.5})
    assert max(e.time_s for e in caught.value.run.trace) == 4.5


def test_waiting_for_a_message_of_a_dead_worker_is_told():
    with pytest.raises(
        tacit.PeerLost,
        match=r"worker 1 was lost at 2\.5 s and receive\(Ball, source=1\) needs a message from it; remove the fault, or let the strategy",
    ):
        simulate(PingPong(), faults=[tacit.Crash(rank=1, at_s=2.5)])


def test_a_collective_of_some_needs_those_alone():
    class Pairs(tacit.Strategy[None]):
        def after_step(self, worker, state):
            group = (0, 1) if worker.rank < 2 else (2,)
            worker.network.all_reduce_mean(worker.parameters, group=group)

    with pytest.raises(
        tacit.PeerLost, match=r"worker 1 was lost at 2\.5 s and all-reduce . needs every worker of ranks 0, 1;"
    ):
        simulate(Pairs(), workers=3, faults=[tacit.Crash(rank=1, at_s=2.5)])


def test_a_server_that_loses_a_worker_is_told_to_catch_it():
    why = (
        r"worker 1 was lost at 2\.5 s and receive\(Gradient\) may need a message from it; remove the fault, or let the"
    )
    with pytest.raises(tacit.PeerLost, match=why):
        simulate(FirstOfAll(), faults=[tacit.Crash(rank=1, at_s=2.5)])


@pytest.mark.parametrize(
    ("strategy", "third", "who"),
    [(LOCAL, tacit.Crash(rank=2, at_s=2.5), "0, 1 and 2"), (tacit.SwarmSGD(), tacit.Join(rank=2, at_s=7.0), "0 and 1")],
    ids=str,
)
def test_a_run_that_no_worker_survives_says_so(strategy, third, who: str):
    faults = [tacit.Crash(rank=0, at_s=2.5), tacit.Crash(rank=1, at_s=2.5), third]
    with pytest.raises(
        tacit.PeerLost, match=rf"workers {who} were lost at 2\.5 s and the run needs a worker; remove a"
    ):
        simulate(strategy, faults=faults)


def test_workers_that_need_nobody_survive_a_crash():
    alone = tacit.LocalSGD(period=tacit.OneShot())
    with pytest.raises(tacit.PeerLost):  # … until the one average at the end
        simulate(alone, faults=[tacit.Crash(rank=1, at_s=2.5)])

    class Never(tacit.LocalSGD):
        def finish(self, worker, state):
            pass

    run = simulate(Never(period=tacit.OneShot()), faults=[tacit.Crash(rank=1, at_s=2.5)])
    assert run.status == "finished"
    assert run.history[-2]["step"] == 11  # evaluated over the two that live


def test_a_pause_stops_computing_and_answering():
    run = simulate(faults=[tacit.Pause(rank=0, at_s=2.5, for_s=3.0)])
    steps = [e for e in run.trace.of("compute") if e.rank == 0]
    assert (steps[2].start_s, steps[2].time_s) == (2.0, 6.0)
    assert run.summary()["time_s"] == 15.0
    answering = simulate(AskAround(every=1), workers=2, faults=[tacit.Pause(rank=1, at_s=0.5, for_s=3.0)])
    first = next(e for e in answering.trace.of("send") if e.label == "Answer" and e.rank == 1)
    assert first.time_s == 3.5


def test_a_round_waits_for_a_paused_worker():
    """A stopped process takes no part in a ring, even if it had joined before."""
    run = simulate(faults=[tacit.Pause(rank=0, at_s=4.2, for_s=3.0)], speed={2: 0.8})
    assert min(run.trace.of("exchange"), key=lambda e: e.round).start_s == pytest.approx(7.2)  # all had joined at 5 s


def test_a_paused_worker_takes_no_message_before_it_wakes():
    run = simulate(PingPong(), workers=2, speed={1: 0.5}, faults=[tacit.Pause(rank=0, at_s=1.5, for_s=3.0)])
    second = [e for e in run.trace.of("compute") if e.rank == 0][1]
    assert second.start_s == 4.5  # the ball came at 2 s


def test_slowness_is_an_integral_over_time():
    run = simulate(faults=[tacit.Slow(rank=0, factor=4.0, at_s=1.5, for_s=2.0)])
    steps = [e for e in run.trace.of("compute") if e.rank == 0]
    # Step 2: half at full speed, then 2 s at a quarter give the other half exactly.
    assert [e.time_s for e in steps[:3]] == [1.0, 3.5, 4.5]
    always = simulate(faults=[tacit.Slow(rank=0, factor=4.0)])
    assert always.summary()["time_s"] == 48.0
    assert simulate(speed={0: 0.25}).summary()["time_s"] == 48.0


def test_a_partition_makes_rounds_wait_until_it_heals():
    run = simulate(faults=[tacit.Partition(ranks=[0, 1], at_s=3.0, for_s=2.0)])
    first = min(run.trace.of("exchange"), key=lambda e: e.round)
    assert first.start_s == 5.0  # joined at 4 s
    with pytest.raises(tacit.TimedOut, match=r"all-reduce 1 got no answer from worker 0 within timeout_s=10"):
        simulate(faults=[tacit.Partition(ranks=[0], at_s=0.0)], timeout_s=10.0)


def test_a_partition_holds_messages_back():
    run = simulate(PingPong(), workers=2, faults=[tacit.Partition(ranks=[0], at_s=0.5, for_s=3.0)])
    received = run.trace.of("receive")
    assert received[0].time_s == 3.5


def test_lost_messages_cost_collectives_time_and_others_the_message():
    lossy = simulate(faults=[tacit.MessageLoss(probability=0.5, retry_s=0.1)])
    assert lossy.summary()["time_s"] > 12.0
    assert lossy.summary()["rounds"] == 3
    with pytest.raises(tacit.Deadlock, match=r"waits in receive\(Answer"):
        simulate(AskAround(every=1), steps=50, faults=[tacit.MessageLoss(probability=0.2)])


def test_lost_messages_leave_the_send_window():
    @dataclass(frozen=True, kw_only=True)
    class Shouting(tacit.Strategy[None]):
        def after_step(self, worker, state):
            for _ in range(100):
                worker.network.send((worker.rank + 1) % worker.size, Ball(1))

    run = simulate(Shouting(), steps=5, faults=[tacit.MessageLoss(probability=0.9)])
    assert run.status == "finished" and len(run.trace.of("send")) == 3 * 500
    assert 50 < len(run.trace.of("receive")) < 300


RETURN, LATE = tacit.Crash(rank=2, at_s=1.2, for_s=0.1), tacit.Join(rank=1, at_s=2.5)


@pytest.mark.parametrize("fault", [RETURN, LATE], ids=str)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_worker_that_comes_in_mid_run_is_refused_at_the_start_unless_it_takes_a_trained_model(row, fault):
    """It would bring its initial model, and the others would average it in."""
    strategy, evaluations = row.strategy, []
    joins = strategy.has_server or isinstance(strategy, tacit.PullSwarm)
    joins |= isinstance(strategy, tacit.SwarmSGD) and not strategy.blocking
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=1.0), faults=[fault])

    def run() -> tacit.Run:
        return tacit.simulate(
            QUADRATIC, strategy, cluster=cluster, steps=8, progress=lambda *told: evaluations.append(told)
        )

    if joins:
        assert run().status == "finished" and evaluations
        return
    with pytest.raises(ValueError, match="admits no workers during the run") as caught:
        run()
    assert str(fault) in str(caught.value) and str(strategy) in str(caught.value)
    assert ("remove for_s=0.1, or" if fault is RETURN else "remove it, or") in str(caught.value)
    assert not evaluations


def test_a_strategy_that_defines_join_takes_workers_in():
    class Fresh(tacit.LocalSGD, tacit.TakesJoiners):
        def join(self, worker, state):
            pass

        def finish(self, worker, state):
            pass

    assert takes_joiners(Fresh()) and not takes_joiners(LOCAL)
    assert simulate(Fresh(period=tacit.OneShot()), faults=[RETURN]).status == "finished"


def test_spells_slow_a_worker_for_a_while():
    spell = tacit.SlowSpells(compute=tacit.Constant(mean_s=1.0), factor=5.0, healthy_mean_s=20.0, spell_mean_s=10.0)
    run = simulate(tacit.LocalSGD(period=tacit.OneShot()), steps=400, compute=spell)
    lengths = [e.time_s - e.start_s for e in run.trace.of("compute")]
    assert min(lengths) == pytest.approx(1.0) and max(lengths) == pytest.approx(5.0)
    assert sum(lengths) / len(lengths) == pytest.approx(spell.expected_s, rel=0.15)
    shares = {
        rank: sum(e.time_s - e.start_s > 1.01 for e in run.trace.of("compute") if e.rank == rank) for rank in range(3)
    }
    assert len(set(shares.values())) > 1  # each worker has its own


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tacit.Cluster(workers=0), "workers=0 must be a whole number, at least 1"),
        (lambda: tacit.Cluster(workers=2, speed={2: 1.0}), "speed names worker 2, but workers=2 have ranks 0 to 1"),
        (lambda: tacit.Cluster(workers=2, faults=[tacit.Crash(rank=5, at_s=1)]), "names worker 5"),
        (lambda: tacit.Cluster(cancel="instantly"), "did you mean 'instant'"),
        (lambda: tacit.Crash(rank=0, at_s=-1), "at_s=-1 must be finite and at least 0"),
        (lambda: tacit.Pause(rank=0, at_s=0, for_s=math.inf), "use Crash for a worker that stops for good"),
        (lambda: tacit.MessageLoss(probability=1.0), "probability=1.0 must be at least 0 and below 1"),
        (lambda: tacit.Cluster(bandwidth_bytes_per_s=0), "bandwidth_bytes_per_s=0 must be positive"),
        (lambda: tacit.Cluster(compute=0.02), r"compute=0.02 must be a delay; try Constant\(mean_s=0.02\)"),
    ],
)
def test_descriptions_check_themselves(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()
