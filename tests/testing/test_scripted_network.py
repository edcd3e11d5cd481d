"""Hooks called with scripted answers."""

from __future__ import annotations

import sys

import pytest
import torch

import tacit
from tacit.core.messages import TensorMessage
from tacit.testing import ScriptedNetwork, ScriptedWorker, toys


def test_a_mean_comes_from_the_list_and_the_call_is_recorded() -> None:
    network = ScriptedNetwork(rank=1, size=3, answers=[torch.tensor([5.0, 7.0])])
    worker = ScriptedWorker(network, parameters=torch.zeros(2), gradient=torch.tensor([1.0, 2.0]), weight=0.5)
    tacit.AllReduce().before_step(worker, tacit.AllReduce().init(worker))
    assert worker.gradient.tolist() == [5.0, 7.0]
    [call] = network.calls
    assert (call.name, call.given.tolist(), call.details["weight"]) == ("all_reduce_mean", [1.0, 2.0], 0.5)
    assert network.left == []


def test_the_rounds_of_local_sgd_without_a_world() -> None:
    strategy = tacit.LocalSGD(period=tacit.Every(2))
    network = ScriptedNetwork(answers=[lambda given: torch.cat([given[:2] + 1, given[2:]])])  # the rest are statistics
    worker = ScriptedWorker(network, parameters=torch.tensor([1.0, 2.0]), steps=10)
    state = strategy.init(worker)
    for worker.step in (1, 2):
        strategy.after_step(worker, state)
    assert len(network.calls) == 1 and worker.parameters.tolist() == [2.0, 3.0]


def test_messages_are_received_from_the_list_and_sends_are_recorded() -> None:
    network = ScriptedNetwork(answers=[(1, toys.Ball(4))])
    worker = ScriptedWorker(network, parameters=torch.zeros(1), step=4)
    toys.PingPong().after_step(worker, toys.BallLog())
    assert [(call.name, call.details) for call in network.calls] == [("send", {"to": 1}), ("receive", {"source": 1})]
    assert network.calls[0].given == toys.Ball(4) and worker.notes == [("caught", 4)]


def test_a_handler_answers() -> None:
    network, strategy = ScriptedNetwork(), toys.AskAround()
    worker = ScriptedWorker(network, parameters=torch.ones(2))
    strategy.on_message(worker, strategy.init(worker), 1, toys.Question(torch.zeros(2)))
    assert network.calls[0].given.model.tolist() == [1.0, 1.0] and network.calls[0].details == {"to": 1}


def test_collectives_of_messages_fill_in_the_own_one() -> None:
    network = ScriptedNetwork(rank=1, answers=[[toys.Gradient(torch.ones(1)), None], torch.tensor([1.0])])
    worker = ScriptedWorker(network, parameters=torch.zeros(1), gradient=torch.tensor([3.0]))
    toys.Gathering().before_step(worker, None)
    assert worker.gradient.tolist() == [2.0]
    ours = [TensorMessage(torch.zeros(1)), TensorMessage(torch.full((2,), 1.0))]
    network.left = [[TensorMessage(torch.zeros(2)), None], [TensorMessage(torch.zeros(1)), None]]
    toys.Handing().before_step(worker, None)
    assert [call.name for call in network.calls] == ["all_gather", "broadcast", "all_to_all", "all_gather"]
    assert [one.tensor.numel() for one in network.calls[2].given] == [one.tensor.numel() for one in ours]


def test_a_pending_mean_and_a_mean_into_a_tensor() -> None:
    network = ScriptedNetwork(answers=[torch.arange(3.0), torch.arange(3.0)])
    parts = [torch.zeros(2), torch.zeros(1)]
    pending = network.start_all_reduce_mean(parts)
    assert pending.is_ready and pending.wait().tolist() == [0.0, 1.0, 2.0]
    assert network.all_reduce_mean(parts, into=parts[0]).tolist() == [2.0] and parts[0].tolist() == [0.0, 1.0]


def test_numbers_travel_behind_a_tensor() -> None:
    network, model = ScriptedNetwork(answers=[torch.arange(4.0)]), torch.zeros(2)
    assert network.all_reduce_mean((model, [5.0, 6.0]), into=model).tolist() == [2.0, 3.0]
    assert network.calls[0].given.tolist() == [0.0, 0.0, 5.0, 6.0] and model.tolist() == [0.0, 1.0]
    with pytest.raises(TypeError, match="the first part must be a tensor"):
        network.all_reduce_mean(([5.0], model))


@pytest.mark.parametrize(
    ("answers", "call", "message"),
    [
        ([], lambda n: n.all_reduce_mean(torch.zeros(1)), "all_reduce_mean is call 1 .* no answer is left"),
        ([torch.zeros(2)], lambda n: n.all_reduce_mean(torch.zeros(1)), "the answer has 2 numbers, 1 were given"),
        ([(1, toys.Ball(1))], lambda n: n.receive(toys.Question), r"receive\(Question\): the next answer is a Ball"),
        ([(1, toys.Ball(1))], lambda n: n.receive(toys.Ball, source=0), r"source=0\): the next answer comes from 1"),
    ],
)
def test_a_script_that_does_not_fit_is_an_assertion(answers: list, call, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        call(ScriptedNetwork(answers=answers))


def test_the_checks_of_compressors_are_found_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tacit.compression.kit", raising=False)
    monkeypatch.delattr(tacit.compression, "kit", raising=False)
    from tacit.testing import check_compressor

    with pytest.warns(
        DeprecationWarning, match=r"tacit.compression.kit is deprecated .* use tacit.testing.compressors"
    ):
        from tacit.compression import kit
    assert kit.check is check_compressor
