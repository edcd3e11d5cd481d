"""Strategies that talk in messages, on real processes: the toys of the simulator's tests, unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.core.messages import Message
from tacit.runtime.train import train
from tacit.strategies import Strategy
from tacit.testing.toys import AskAround, FirstOfAll, Gathering, PingPong
from tests.runtime.processes import outcomes, together

QUADRATIC = workloads.quadratic(dimension=7, noise=0.0)


def play(strategy: Strategy, steps: int, workload=QUADRATIC) -> dict:
    run = train(workload, strategy, steps=steps, seed=1, evaluate_every=1000)
    return {
        "parameters": run.parameters,
        "order": [(e.rank, e.kind, e.peer, e.label) for e in run.trace if e.kind in ("send", "receive")],
        "notes": [(e.rank, e.label, e.value) for e in run.trace if e.kind == "note"],
        "bytes": run.summary()["bytes_sent"],
        "loss": [row["loss"] for row in run.history],
    }


def of_rank(order: list[tuple], rank: int) -> list[tuple]:
    return [event for event in order if event[0] == rank]


def test_ping_pong_has_the_same_causal_order_in_both_worlds():
    real, *_ = together(3, play, PingPong(), 6)
    run = tacit.simulate(QUADRATIC, PingPong(), cluster=tacit.Cluster(workers=3), steps=6, seed=1)
    simulated = [(e.rank, e.kind, e.peer, e.label) for e in run.trace if e.kind in ("send", "receive")]
    for rank in range(2):
        mine = of_rank(real["order"], rank)
        assert sorted(mine) == sorted(of_rank(simulated, rank))
        # Each ball is thrown before the other's of the same step is caught; the other's may be here already.
        sends = [i for i, event in enumerate(mine) if event[1] == "send"]
        assert len(sends) == 6 and all(
            mine[: at + 1].count((rank, "receive", 1 - rank, "Ball")) <= k + 1 for k, at in enumerate(sends)
        )
    for rank in range(2):
        assert [value for r, label, value in real["notes"] if (r, label) == (rank, "caught")] == [1, 2, 3, 4, 5, 6]
    assert real["bytes"] == run.summary()["bytes_sent"]


def test_handlers_answer_while_their_workers_compute():
    real = together(3, play, AskAround(every=3), 12)[0]
    run = tacit.simulate(QUADRATIC, AskAround(every=3), cluster=tacit.Cluster(workers=3), steps=12, seed=1)
    simulated = [(e.rank, e.kind, e.peer, e.label) for e in run.trace if e.kind in ("send", "receive")]
    for rank in range(3):
        assert sorted(of_rank(real["order"], rank)) == sorted(of_rank(simulated, rank))
    assert real["bytes"] == run.summary()["bytes_sent"]
    assert real["loss"][-1] < real["loss"][0]


def test_a_server_in_rank_0_trains_the_model_that_all_report():
    results = together(3, play, FirstOfAll(), 20)
    for result in results[1:]:
        assert torch.equal(result["parameters"], results[0]["parameters"])
    assert results[0]["loss"][-1] < 0.5 * results[0]["loss"][0]
    updates = sorted(value for _, label, value in results[0]["notes"] if label == "update")
    assert updates == list(range(1, 21))


def test_gathering_and_broadcasting():
    real = together(3, play, Gathering(), 5)
    run = tacit.simulate(QUADRATIC, Gathering(), cluster=tacit.Cluster(workers=3), steps=5, seed=1)
    for result in real:
        torch.testing.assert_close(result["parameters"], run.parameters, rtol=1e-12, atol=1e-12)
    assert real[0]["bytes"] == run.summary()["bytes_sent"]


@dataclass(frozen=True)
class Early(Message):
    number: int


@dataclass(frozen=True, kw_only=True)
class SendsFirst(Strategy[None]):
    """Rank 0 sends before a collective that rank 1 enters before its first call for messages."""

    sends = False  # of earlier versions; without effect

    def after_step(self, worker, state):
        if worker.rank == 0:
            worker.network.send(1, Early(worker.step))
        worker.network.all_reduce_mean(torch.ones(1))
        if worker.rank == 1:
            worker.note("received", worker.network.receive(Early)[1].number)


@dataclass(frozen=True, kw_only=True)
class LocalSGDWithMessages(tacit.LocalSGD):
    """A subclass of a strategy that uses collectives only may use messages."""

    def after_step(self, worker, state):
        super().after_step(worker, state)
        worker.network.send(1 - worker.rank, Early(worker.step))
        worker.note("received", worker.network.receive(Early)[1].number)


def test_messages_need_no_flag():
    for strategy, receivers in ((SendsFirst(), [1]), (LocalSGDWithMessages(period=tacit.Every(1)), [0, 1])):
        real = together(2, play, strategy, 4)[0]["notes"]
        run = tacit.simulate(QUADRATIC, strategy, cluster=tacit.Cluster(workers=2), steps=4, seed=1)
        expected = [(rank, "received", step) for rank in receivers for step in range(1, 5)]
        assert sorted(note for note in real if note[1] == "received") == expected
        assert sorted((e.rank, e.label, e.value) for e in run.trace.of("note") if e.label == "received") == expected


def replaced_kind() -> list[int]:
    """Send a message of a class that a later one of the same kind has replaced."""
    received = []

    def make() -> Strategy:
        @dataclass(frozen=True)
        class Defined(Message):
            number: int

        class Throwing(Strategy[None]):
            def after_step(self, worker, state):
                worker.network.send(1 - worker.rank, Defined(worker.step))
                _, ball = worker.network.receive(Defined)
                [gathered, _] = worker.network.all_gather(ball)
                assert type(ball) is type(gathered) is Defined
                received.append(ball.number)

        return Throwing()

    first, _ = make(), make()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, first, steps=2):
        optimizer.step()
        optimizer.step()
    return received


def test_real_messages_too_are_instances_of_the_class_that_was_asked_for():
    assert together(2, replaced_kind) == [[1, 2], [1, 2]]


def hasty() -> None:
    class Hasty(FirstOfAll):
        cancels = False

    train(QUADRATIC, Hasty(), steps=3, seed=1)


def test_abandoning_without_saying_so_names_the_way_out():
    failed = outcomes(2, hasty)
    assert any("Hasty abandons a step, but cancels=False; set cancels = True" in one.text for one in failed), failed


def subgroups() -> list[float]:
    """Means within pairs, on groups that only their members open."""
    found = []

    class Pairs(Strategy[None]):
        def after_step(self, worker, state):
            pair = (0, 1) if worker.rank < 2 else (2, 3)
            found.append(worker.network.all_reduce_mean(torch.tensor([float(worker.rank)]), group=pair).item())

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, Pairs(), steps=2):
        optimizer.step()
        optimizer.step()
    return found


def test_groups_of_some_ranks():
    assert together(4, subgroups) == [[0.5, 0.5], [0.5, 0.5], [2.5, 2.5], [2.5, 2.5]]
