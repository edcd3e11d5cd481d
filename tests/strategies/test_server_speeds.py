"""Learners that differ in speed and in data: what the server's model settles at, who warns of it, and what corrects it."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.strategies import Strategy
from tacit.strategies.servers.messages import ServedModel
from tacit.strategies.servers.parts.learner_speeds import UpdateIntervals
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.server import ParameterServer
from tests.strategies.server_runs import FREE, notes
from tests.strategies.test_server_ends import ScriptedServer, push

SPLIT = workloads.quadratic(dimension=5, condition=2.0, noise=0.0, heterogeneity=1.0)
SAME = workloads.quadratic(dimension=5, condition=2.0, noise=0.0)
SEED = 1
biased = pytest.mark.filterwarnings("ignore::tacit.SpeedBias")


def simulate(strategy: Strategy, workload: workloads.Workload = SPLIT, *, steps: int = 600, **rest) -> tacit.Run:
    described = {name: rest.pop(name) for name in ("speed", "faults") if name in rest}
    compute = tacit.ShiftedExponential(shift_s=0.8, tail_mean_s=0.2)
    cluster = tacit.Cluster(workers=4, compute=compute, **FREE, **described)
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=SEED, engine="loop", **rest)


def excess(run: tacit.Run) -> float:
    """Return the mean loss over the last third of a run, above the least there is."""
    losses = [row["loss"] for row in run.history]
    return float(np.mean(losses[-len(losses) // 3 :])) - SPLIT.open(4, Streams(SEED)).optimal_loss


ONE_FASTER = {0: 4.0}
"""The first of four learners is four times faster."""


@pytest.mark.paper
@biased
@pytest.mark.parametrize("strategy", [tacit.KAsync(k=1), tacit.KBatchAsync(k=2)], ids=str)
def test_the_model_settles_at_the_minimum_of_the_speed_weighted_mean(strategy):
    """Four learners, one of them four times faster: with equal curvatures that is (4 b_0 + b_1 + b_2 + b_3)/7."""
    centers = SPLIT.open(4, Streams(SEED)).centers
    biased_run = simulate(strategy, lr=0.03, speed=ONE_FASTER)
    expected = (4 * centers[0] + centers[1:].sum(0)) / 7
    assert float((biased_run.parameters - expected).norm()) < 0.3 * float(expected.norm())
    assert excess(biased_run) > 20 * excess(simulate(strategy, lr=0.03))


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize(
    "strategy",
    [
        tacit.KAsync(k=1, rate=tacit.RescaledRate()),
        tacit.KAsync(k=2, rate=tacit.RescaledRate()),
        tacit.KBatchAsync(k=1, rate=tacit.RescaledRate()),
        tacit.KBatchAsync(k=2, rate=tacit.RescaledRate()),
        tacit.Ringleader(),
    ],
    ids=str,
)
@pytest.mark.parametrize("speed", [{0: 4.0}, {0: 0.25, 1: 2.0}], ids=str)
def test_both_remedies_settle_at_the_minimum_of_the_mean(strategy, speed):
    """The excess loss is of the size it has with equal speeds; without a remedy it is more than twenty times that."""
    unequal = excess(simulate(strategy, lr=0.03, speed=speed))
    assert unequal < max(3 * excess_at_equal_speeds(strategy), 0.005)


@functools.cache
def excess_at_equal_speeds(strategy: Strategy) -> float:
    return excess(simulate(strategy, lr=0.03))


# The rate.


def test_a_learners_time_is_the_mean_number_of_updates_between_its_uses():
    memory: dict[str, float] = {}
    times = UpdateIntervals(memory)
    for update in range(1, 41):
        times.record(1 if update % 4 == 0 else 0, update)
    assert times.relative(1, [0, 1]) == pytest.approx(4 / ((4 + 40 / 30) / 2), rel=0.05)
    assert np.mean([times.relative(rank, [0, 1]) for rank in (0, 1)]) == pytest.approx(1.0)
    assert times.relative(0, [0]) == times.relative(0, [0, 2]) == 1.0  # one that was never used is not known
    assert UpdateIntervals(dict(memory)).relative(1, [0, 1]) == times.relative(1, [0, 1])  # the memory is all there is


def test_measured_times_are_part_of_the_servers_state():
    strategy = tacit.KAsync(k=1, rate=tacit.RescaledRate())
    run = simulate(strategy, steps=100, speed=ONE_FASTER, lr=0.03)
    memory = run.server[0]["state"]["memory"]
    assert memory["time/1"] / memory["time/0"] == pytest.approx(4.0, rel=0.25)
    resumed = simulate(strategy, steps=101, speed=ONE_FASTER, lr=0.03, start=run).server[0]["state"]["memory"]
    assert sum(resumed[f"uses/{rank}"] for rank in range(4)) == 101


def test_a_rate_of_the_old_form_still_works():
    class Halved(tacit.strategies.servers.Rate):
        def of(self, rate: float, staleness: int, distance_squared: float) -> float:
            return rate / 2

    halved, plain = simulate(tacit.KAsync(k=1, rate=Halved()), lr=0.06), simulate(tacit.KAsync(k=1), lr=0.03)
    torch.testing.assert_close(halved.parameters, plain.parameters)


# Ringleader.


def test_ringleader_is_the_papers_table():
    """Two learners: a round by hand. Phase 1 ends with the first push of learner 1; then each gets one update."""
    sent: list[tuple[int, int, int]] = []

    class Watched(ScriptedServer):
        def send(self, to, message):
            assert isinstance(message, ServedModel)
            sent.append((to, message.version, message.body.numel()))

    server = Watched(2, torch.zeros(4), steps=3)
    ones = torch.ones(4)

    def gradient(version: int, value: float):
        return tacit.strategies.servers.messages.ServerPush(0, version, 1.0, 1.0, float("nan"), value * ones)

    server.coming.extend([(0, gradient(0, 1.0)), (0, gradient(0, 3.0)), (1, gradient(0, 10.0))])  # phase 1
    models = []
    update = server.update

    def watched(gradient, learning_rate=None):
        update(gradient, learning_rate)
        models.append(float(server.parameters[0]))

    server.update = watched  # type: ignore[method-assign]
    server.coming.extend(
        [(1, gradient(1, 20.0)), (0, gradient(0, 5.0))]
    )  # learner 1 had its update: for the next round
    server.coming.extend([(0, gradient(2, 7.0))])  # the table of the next round is complete
    strategy = tacit.Ringleader()
    strategy.serve(server, ServerState(1))
    first = (2.0 + 10.0) / 2  # (1 + 3)/2 of learner 0, 10 of learner 1
    second = (3.0 + 10.0) / 2  # (1 + 3 + 5)/3
    third = (7.0 + 20.0) / 2
    assert models == pytest.approx([-first, -first - second, -first - second - third])
    assert sent == [(0, 0, 0), (0, 0, 0), (1, 1, 4), (1, 1, 0), (0, 2, 4), (0, 3, 4)]


def test_in_each_round_of_ringleader_every_learner_gets_one_update_and_staleness_is_bounded():
    run = simulate(tacit.Ringleader(), steps=80, speed={0: 8.0, 1: 0.3})
    users = [note.peer for note in notes(run, "staleness")]
    assert all(set(users[begin : begin + 4]) == {0, 1, 2, 3} for begin in range(0, 80, 4))
    assert max(note.value for note in notes(run, "staleness")) <= 2 * 4 - 2
    assert run.summary()["idle"] == 0.0
    pushed = sum(event.label == "push" for event in run.trace.of("receive"))
    assert pushed > 2 * 80  # fast learners average more


def test_ringleader_continues_without_a_lost_learner_and_with_one_that_joins():
    faults = [tacit.Crash(rank=2, at_s=5.0), tacit.Crash(rank=1, at_s=6.0, for_s=10.0)]
    run = simulate(tacit.Ringleader(), steps=200, faults=faults)
    assert run.status == "finished"
    users = {note.peer for note in notes(run, "staleness") if note.time_s > 20.0}
    assert users == {0, 1, 3}


def test_a_learner_that_cannot_be_reached_is_a_deadlock_and_not_endless_work():
    with pytest.raises(tacit.Deadlock):
        simulate(tacit.Ringleader(), faults=[tacit.Partition(ranks=[1], at_s=3.0)])


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(1, 6))
def test_learners_that_have_pushed_enough_idle_and_are_answered(steps):
    """Learner 1 takes as long as a thousand steps of the others, which idle meanwhile; in the end each push has its
    answer.
    """
    run = simulate(tacit.Ringleader(), steps=steps, speed={1: 1e-3}, host="greenlet")
    pushed = [e.peer for e in run.trace.of("receive") if (e.rank, e.label) == (-1, "push")]
    answered = [e.peer for e in run.trace.of("send") if (e.rank, e.label) == (-1, "model")]
    assert sorted(pushed) == sorted(answered) and pushed.count(0) < 600


# The warning.


def warned(run) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if issubclass(one.category, tacit.SpeedBias)]


SLOW = {"faults": [tacit.Slow(rank=1, factor=3.0)]}


@pytest.mark.parametrize("setting", [{"speed": ONE_FASTER}, SLOW], ids=["speed", "slow"])
@pytest.mark.parametrize(
    "strategy", [tacit.KAsync(k=1), tacit.KBatchAsync(k=5), tacit.KSync(k=2), tacit.AdaSync(tacit.KAsync(k=2))], ids=str
)
def test_the_simulator_warns_once_where_speeds_and_data_differ(strategy, setting):
    [said] = warned(lambda: simulate(strategy, steps=5, **setting))
    assert str(strategy) in said and "rate=RescaledRate() or Ringleader()" in said


@pytest.mark.parametrize(
    ("strategy", "workload", "setting"),
    [
        (tacit.KAsync(k=1), SPLIT, {}),
        (tacit.KAsync(k=1), SPLIT, {"speed": dict.fromkeys(range(4), 2.0)}),
        (tacit.KAsync(k=1), SAME, {"speed": ONE_FASTER}),
        (tacit.KAsync(k=1), workloads.digits(), {"speed": ONE_FASTER}),
        (tacit.KAsync(k=4), SPLIT, {"speed": ONE_FASTER}),
        (tacit.KAsync(k=1, maximum_staleness=0), SPLIT, {"speed": ONE_FASTER}),
        (tacit.KAsync(k=1, rate=tacit.RescaledRate()), SPLIT, {"speed": ONE_FASTER}),
        (tacit.Ringleader(), SPLIT, {"speed": ONE_FASTER}),
        (tacit.AllReduce(), SPLIT, {"speed": ONE_FASTER}),
    ],
    ids=str,
)
def test_otherwise_it_does_not(strategy, workload, setting):
    assert not warned(lambda: simulate(strategy, workload, steps=5, **setting))


def counted(uses: list[int], kind: Strategy, knows_split: bool = False) -> list[str]:
    """Return what is warned of on a server that is pushed to by these learners in turn."""
    server = ScriptedServer(3, torch.zeros(4), steps=len(uses), knows_split=knows_split)
    server.coming.extend((rank, push(0, number)) for number, rank in enumerate(uses))
    return warned(lambda: ParameterServer(kind, server, ServerState(1, has_left=[False] * 3)).serve())


def test_a_server_that_does_not_know_the_data_says_what_it_has_counted():
    fair, unfair = [0, 1, 2] * 100, [0, 1, 0, 2, 0] * 60
    [said] = counted(unfair, tacit.KAsync(k=1))
    assert "has used 90 gradients of learner 0 and 30 of learner" in said and "If learners hold different data" in said
    assert not counted(fair, tacit.KAsync(k=1))
    assert not counted(unfair, tacit.KAsync(k=1), knows_split=True)
    assert not counted(unfair, tacit.KAsync(k=1, rate=tacit.RescaledRate()))
