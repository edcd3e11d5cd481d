"""The clock of a run on real processes: its start, its stops, and rounds under way while it is stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.messages import TensorMessage
from tacit.record.merge import LossCurve, merged, packed
from tacit.record.trace import COMPUTE, EXCHANGE, NOTE, START, WAIT, Trace
from tacit.runtime import clock as clock_module
from tacit.runtime.backend import ProcessBackend
from tacit.runtime.clock import RunClock
from tacit.runtime.collectives import Collectives
from tacit.runtime.membership import means as means_module
from tacit.runtime.membership.means import Mean
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.network import ProcessNetwork
from tacit.runtime.step_context import ProcessStep
from tacit.runtime.train import train
from tests.runtime.processes import together

ROUND_S = 0.5


class FakeTime:
    """A counter that only ``sleep`` moves."""

    def __init__(self) -> None:
        self.counter_s = 100.0

    def perf_counter(self) -> float:
        return self.counter_s

    def sleep(self, seconds: float) -> None:
        self.counter_s += seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    monkeypatch.setattr(means_module, "time", fake)
    return fake


class SlowWire:
    """A network whose all-reduces take ``ROUND_S`` seconds; members do not change."""

    membership = None
    begin_call, end_call = Collectives.begin_call, Collectives.end_call

    def __init__(self, now: FakeTime) -> None:
        self.now, self.clock, self.trace = now, RunClock(), Trace()
        self.clock.start()
        backend: Any = SimpleNamespace(rank=0, size=2, hook_lock=HookLock(), clock=self.clock, trace=self.trace)
        backend.now_s = self.clock.now_s
        backend.step = ProcessStep(0, self.clock, self.trace, backend.hook_lock, [], lambda: None)
        backend.is_handling, backend.collectives = False, self
        self.ranks, self.size, self.place, self.backend = (0, 1), 2, 0, backend
        self.network = ProcessNetwork(backend)

    def participants(self, group: object, what: str) -> tuple[int, ...]:
        return self.ranks

    def group(self, ranks: object) -> SlowWire:
        return self

    def wire_device(self, tensor: torch.Tensor) -> torch.device:
        return tensor.device

    def all_reduce(self, buffer: torch.Tensor) -> Any:
        end_s = self.now.counter_s + ROUND_S
        return SimpleNamespace(end_s=end_s, is_completed=lambda: self.now.counter_s >= end_s)

    def wait_for(self, call: Any, what: str) -> None:
        self.now.counter_s = max(self.now.counter_s, call.end_s)

    def start(self) -> Mean:
        return self.network.start_all_reduce_mean(torch.ones(3))

    def drain(self) -> None:
        for mean in self.backend.step.means_in_progress:
            mean.drain()


def test_the_clock_shows_zero_until_it_starts(now: FakeTime) -> None:
    clock = RunClock()
    now.sleep(3.0)
    assert clock.now_s() == 0.0
    with clock.pause():
        now.sleep(1.0)
    assert clock.now_s() == 0.0
    clock.start()
    now.sleep(2.0)
    assert clock.now_s() == 2.0
    assert clock.at_s(100.0) == -4.0


@pytest.mark.parametrize("evaluation_s", [0.0, 0.2, 7.0])
def test_a_round_lasts_as_long_on_the_clock_with_an_evaluation_as_without(now: FakeTime, evaluation_s: float) -> None:
    wire = SlowWire(now)
    mean = wire.start()
    now.sleep(0.1)
    with wire.clock.pause():
        wire.drain()
        now.sleep(evaluation_s)
    assert wire.clock.now_s() == pytest.approx(0.1)
    now.sleep(0.1)  # computation goes on
    wire.backend.step.boundaries += 1
    assert not mean.is_ready
    mean.wait()
    assert wire.clock.now_s() == pytest.approx(ROUND_S)
    [wait], [exchange] = wire.trace.of(WAIT), wire.trace.of(EXCHANGE)
    assert (wait.start_s, wait.time_s) == (pytest.approx(0.2), pytest.approx(ROUND_S))
    assert (exchange.start_s, exchange.time_s, exchange.value) == (0.0, pytest.approx(ROUND_S), 1.0)


def test_a_round_that_would_have_ended_is_not_waited_for(now: FakeTime) -> None:
    wire = SlowWire(now)
    mean = wire.start()
    with wire.clock.pause():
        wire.drain()
    now.sleep(0.8)
    wire.backend.step.boundaries += 1
    assert mean.is_ready
    mean.wait()
    assert wire.clock.now_s() == pytest.approx(0.8)
    assert not wire.trace.of(WAIT) and wire.trace.of(EXCHANGE)[0].time_s == pytest.approx(ROUND_S)


def test_a_round_that_a_checkpoint_completes_is_charged_at_once(now: FakeTime) -> None:
    wire = SlowWire(now)
    mean = wire.start()
    with wire.clock.pause():
        wire.drain()
        mean.wait()
    assert wire.clock.now_s() == pytest.approx(ROUND_S)


def test_merging_keeps_the_mark_of_overlapped_exchanges() -> None:
    records = []
    for rank, start_s in enumerate((1.0, 1.5)):
        trace = Trace()
        trace.exchange(rank, start_s, 3.0, "all-reduce", 1, 10, is_overlapped=True)
        trace.exchange(rank, start_s + 4.0, 7.0, "all-reduce", 2, 10)
        records.append(packed(trace, LossCurve(None)))
    trace, _ = merged(records)
    assert [(event.round, event.start_s, event.value) for event in trace.of(EXCHANGE)] == [
        (1, 1.5, 1.0),
        (1, 1.5, 1.0),
        (2, 5.5, 0.0),
        (2, 5.5, 0.0),
    ]
    assert [(event.rank, event.round) for event in trace.of(WAIT)] == [(0, 2)]


def trained(strategy: tacit.Strategy) -> tacit.Run:
    return train(workloads.digits(), strategy, steps=6, evaluate_every=3)


def test_the_broadcast_of_start_values_precedes_time_zero_and_is_no_traffic() -> None:
    run = together(2, trained, tacit.LocalSGD(period=tacit.Every(2), overlap_steps=1))[0]
    starts = run.trace.of(START)
    assert [event.rank for event in sorted(starts, key=lambda event: event.rank)] == [0, 1]
    assert all(event.start_s < event.time_s < 0.0 and event.round == 0 for event in starts)
    assert sum(event.size_bytes for event in starts) == run.parameters.numel() * 4  # rank 0 sends the model once
    assert min(event.start_s for event in run.trace.of(COMPUTE, EXCHANGE, WAIT, NOTE)) >= 0.0
    overlapped = [event.value for event in run.trace.of(EXCHANGE) if event.round <= 2]
    assert overlapped and set(overlapped) == {1.0}
    simulated = tacit.simulate(
        workloads.digits(),
        tacit.LocalSGD(period=tacit.Every(2), overlap_steps=1),
        cluster=tacit.Cluster(workers=2),
        steps=6,
    )
    assert run.summary()["bytes_sent"] == simulated.summary()["bytes_sent"]


class Posts(tacit.Strategy[dict]):
    """Rank 0 sends a message after its first step; rank 1 reads it in its second step."""

    def init(self, worker):
        return {}

    def after_step(self, worker, state):
        if worker.step == 1 and worker.rank == 0:
            worker.network.send(1, TensorMessage(torch.ones(200_000)))
        if worker.step == 2 and worker.rank == 1:
            _, state["message"] = worker.network.receive(TensorMessage, source=0)


def posted() -> tuple[dict[int, int], int]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, Posts(), steps=2) as session:
        optimizer.step()
        endpoint = session._backend.endpoint
        with session.reported_model():
            arrived = dict(endpoint._reader.arrived)
            waiting = endpoint.waiting
        optimizer.step()
    return arrived, waiting


def test_messages_under_way_have_arrived_when_the_clock_stops() -> None:
    assert together(2, posted) == [({}, 0), ({0: 1}, 1)]


@pytest.mark.parametrize(("arrival_s", "expected_s"), [(100.7, 0.7), (100.3, 0.5)])
def test_the_clock_stops_at_the_arrival_of_the_last_message(now: FakeTime, arrival_s: float, expected_s: float) -> None:
    clock, trace, awaited = RunClock(), Trace(), []
    clock.start()
    now.sleep(0.5)

    def wait_for_arrival(sent: dict[int, int]) -> float:
        awaited.append(sent)
        return arrival_s

    endpoint: Any = SimpleNamespace(sent={(0, 1): 2}, wait_for_arrival=wait_for_arrival)
    backend: Any = SimpleNamespace(rank=1, _life=2, now_s=clock.now_s, clock=clock, _trace=trace)
    backend.all_gather = lambda own: [b'{"1/2": 3, "2/1": 4}', own, b""]  # rank 2 is lost
    with clock.pause():
        ProcessBackend._drain_messages(backend, endpoint)
        now.sleep(9.0)
    assert awaited == [{0: 3, 1: 0}]
    assert clock.now_s() == pytest.approx(expected_s)
    waits = [(event.start_s, event.time_s) for event in trace.of(WAIT)]
    assert waits == ([(pytest.approx(0.5), pytest.approx(0.7))] if expected_s > 0.5 else [])
