"""The two ends of a server strategy, spoken to directly: links that compress, models that are kept, and K that adapts."""

from __future__ import annotations

import itertools
import logging
import math
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import tacit
from tacit import theory, workloads
from tacit.compression.feedback.updates import Update
from tacit.core.messages import Message
from tacit.strategies.servers.messages import (
    ModelRequest,
    ServedModel,
    ServerLeave,
    ServerPush,
    ShardBatch,
    ShardReport,
)
from tacit.strategies.servers.parts.channels import gradient_channel, known_model_state, model_channel
from tacit.strategies.servers.parts.server_channels import GradientChannels, ModelChannels
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.server import ParameterServer
from tests.strategies.server_runs import KINDS, SEVERAL_TENSORS, notes, simulate


@dataclass
class ScriptedServer:
    """A world of one server: what comes is written down beforehand, what it sends is looked at and forgotten."""

    size: int
    parameters: Tensor
    coming: deque[tuple[int, Message]] = field(default_factory=deque)
    steps: int | None = None
    shard: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    alive: list[weakref.ref[Tensor]] = field(default_factory=list)
    most_alive: int = 0
    time_s: float = 0.0
    knows_split: bool = True

    @property
    def network(self) -> ScriptedServer:
        return self

    def send(self, to: int, message: Message) -> None:
        if all(known() is not message.body for known in self.alive):
            self.alive.append(weakref.ref(message.body))
        self.alive = [known for known in self.alive if known() is not None]
        self.most_alive = max(self.most_alive, len(self.alive))

    def receive(self, kind: type[Message], source: int | None = None) -> tuple[int, Message]:
        return self.coming.popleft()

    def update(self, gradient: Tensor, learning_rate: float | None = None) -> None:
        self.parameters -= learning_rate * gradient

    def note(self, name: str, value: float, about: int | None = None) -> None: ...

    def now_s(self) -> float:
        return self.time_s


def push(version: int, number: int = 0, loss: float = math.nan, weight: float = 1.0) -> ServerPush:
    return ServerPush(number, version, 0.1, weight, loss, torch.ones(4))


def test_the_server_keeps_versions_and_not_a_copy_for_each_learner():
    """60 learners, of which one is fast: two versions are held, and the one being made."""
    server = ScriptedServer(60, torch.zeros(4), steps=200)
    server.coming.extend((0, push(version, version)) for version in range(200))
    kind = tacit.KAsync(k=1, rate=tacit.StalenessRate(c=1.0))
    ParameterServer(kind, server, ServerState(1, has_left=[False] * 60)).serve()
    assert server.most_alive <= 3
    spread = ScriptedServer(60, torch.zeros(4), steps=60)
    spread.coming.extend((rank, push(0)) for rank in range(60))  # each is given another version
    ParameterServer(kind, spread, ServerState(1, has_left=[False] * 60)).serve()
    assert spread.most_alive >= 58  # so the count above can fail


def test_a_skipped_step_counts_for_nothing():
    server = ScriptedServer(3, torch.zeros(4), steps=1)
    server.coming.extend([(0, push(0, weight=2.0**-60)), (0, push(0, 1)), (1, push(0))])
    ParameterServer(tacit.KSync(k=2), server, ServerState(2, has_left=[False] * 3)).serve()
    torch.testing.assert_close(server.parameters, torch.full((4,), -0.1))


WRONG = {
    "a version that does not exist yet": push(3),
    "a version below 0": push(-1),
    "a version that no learner has": replace(push(0), version=1),
    "a negative number": push(0, number=-5),
    "a weight that is NaN": push(0, weight=math.nan),
    "an infinite weight": push(0, weight=math.inf),
    "a negative weight": push(0, weight=-1.0),
    "a rate that overflows": replace(push(0), rate=1e300),
    "another shape": replace(push(0), body=torch.ones(5)),
    "another dtype": replace(push(0), body=torch.ones(4, dtype=torch.int64)),
    "NaN": replace(push(0), body=torch.tensor([1.0, math.nan, 1.0, 1.0])),
    "compressed content": replace(push(0), body=Update(1.0, None, None)),
    "a batch of shards": ShardBatch(torch.tensor([0]), torch.tensor([0])),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("rate", [None, tacit.StalenessRate(c=1.0)], ids=str)
def test_content_that_does_not_fit_ends_at_most_its_sender(what: str, rate, caplog):
    """The update is that of the other learner alone, and the sender's next push is not used."""
    server = ScriptedServer(2, torch.zeros(4), steps=2)
    server.coming.extend([(1, WRONG[what]), (1, push(0)), (0, push(0)), (0, push(1, 1))])
    with caplog.at_level(logging.WARNING, "tacit"):
        ParameterServer(tacit.KAsync(k=1, rate=rate), server, ServerState(1, has_left=[False] * 2)).serve()
    if what == "a version that no learner has" and rate is None:
        assert caplog.records  # the model of version 1 is not needed, but it does not exist yet either
    torch.testing.assert_close(server.parameters, torch.full((4,), -0.2))
    assert "the server refused a message of worker 1" in caplog.text


@pytest.mark.parametrize("source", [-1, -3, 2, 99])
def test_a_sender_that_is_no_learner_is_refused(source: int):
    """A negative rank would count as one of the last learners."""
    server = ScriptedServer(2, torch.zeros(4), steps=1)
    server.coming.extend([(source, push(0)), (source, ServerLeave()), (1, push(0))])
    ParameterServer(tacit.KAsync(k=1), server, ServerState(1, has_left=[False] * 2)).serve()
    torch.testing.assert_close(server.parameters, torch.full((4,), -0.1))


def test_a_server_whose_last_learner_is_refused_ends_with_the_reason():
    server = ScriptedServer(1, torch.zeros(4), deque([(0, push(3))]), steps=1)
    with pytest.raises(tacit.PeerLost, match="has no learner left") as caught:
        ParameterServer(tacit.KAsync(k=1), server, ServerState(1, has_left=[False])).serve()
    assert "learner 0 pushed a gradient at version 3 of a model at 0" in (caught.value.reason or "")


@dataclass(frozen=True)
class Loss(Message):
    """In a script: the server hears that the sender is lost."""


class LosingServer(ScriptedServer):
    """Reports the losses that its script contains."""

    def receive(self, kind: type[Message], source: int | None = None) -> tuple[int, Message]:
        rank, message = super().receive(kind, source)
        if isinstance(message, Loss):
            raise tacit.PeerLost(rank, 1.0, "receive")
        return rank, message


class SpeakingServer(LosingServer):
    """Keeps the messages to other shards."""

    sent: list[tuple[int, Message]]

    def send(self, to: int, message: Message) -> None:
        if to < 0:
            self.sent = [*getattr(self, "sent", []), (to, message)]


def test_an_update_uses_the_pushes_that_all_shards_have():
    """Learner 1 dies between its sends to two shards: the leader has its push, the other shard never gets it."""
    leader = SpeakingServer(3, torch.zeros(4), steps=2)
    reports = [(-3, ShardReport(rank, number)) for rank, number in ((0, 0), (2, 0), (0, 1), (2, 1))]
    leader.coming.extend([(0, push(0)), (1, push(0)), reports[0], (2, push(0)), (1, Loss()), reports[1]])
    leader.coming.extend([(0, push(1, 1)), reports[2], reports[3], (2, push(1, 1))])  # a report may come first
    ParameterServer(tacit.KAsync(k=2, shards=2), leader, ServerState(2, has_left=[False] * 3)).serve()
    batches = [(one.ranks.tolist(), one.numbers.tolist()) for to, one in leader.sent if isinstance(one, ShardBatch)]
    assert batches == [([0, 2], [0, 0]), ([0, 2], [1, 1])]
    assert leader.sent[-1] == (-3, ServerLeave())
    torch.testing.assert_close(leader.parameters, torch.full((4,), -0.2))


def test_a_shard_reports_what_it_has_and_makes_the_updates_of_the_leader():
    shard = SpeakingServer(3, torch.zeros(4), steps=1, shard=1)
    both = ShardBatch(torch.tensor([0, 2]), torch.tensor([0, 0]))
    shard.coming.extend([(0, push(0)), (1, Loss()), (2, replace(push(0), body=torch.full((4,), 3.0))), (-1, both)])
    ParameterServer(tacit.KAsync(k=2, shards=2), shard, ServerState(2, has_left=[False] * 3)).serve()
    assert shard.sent == [(-1, ShardReport(0, 0)), (-1, ShardReport(2, 0))]
    torch.testing.assert_close(shard.parameters, torch.full((4,), -0.2))


def test_a_leader_whose_learners_have_all_left_waits_for_the_last_reports():
    leader = SpeakingServer(2, torch.zeros(4), steps=1)
    leader.coming.extend([(0, push(0)), (0, ServerLeave()), (1, ServerLeave()), (-3, ShardReport(0, 0))])
    ParameterServer(tacit.KAsync(k=2, shards=2), leader, ServerState(2, has_left=[False] * 2)).serve()
    torch.testing.assert_close(leader.parameters, torch.full((4,), -0.1))
    assert not leader.coming


def test_a_learner_that_returns_counts_its_pushes_anew():
    """A report of the earlier life does not stand for a push of the new one."""
    leader = SpeakingServer(2, torch.zeros(4), steps=1)
    leader.coming.extend([(1, push(0)), (1, Loss()), (1, ModelRequest(is_joining=True)), (-3, ShardReport(1, 0))])
    leader.coming.extend([(1, push(0, 2**20)), (-3, ShardReport(1, 2**20))])
    ParameterServer(tacit.KAsync(k=1, shards=2), leader, ServerState(1, has_left=[False] * 2)).serve()
    assert leader.sent[0][1].numbers.tolist() == [2**20]


def test_shards_keep_no_more_pushes_of_a_learner_than_an_update_may_use():
    """The leader would otherwise get reports faster than it reads them, from learners that need not wait for answers.

    After an update, and after a learner has joined again, they are counted anew.
    """
    shard = SpeakingServer(2, torch.zeros(4), steps=2, shard=1)
    shard.coming.extend([(0, push(0, number)) for number in range(5)])
    shard.coming.append((-1, ShardBatch(torch.tensor([0, 0]), torch.tensor([0, 1]))))
    shard.coming.extend([(0, push(1, number)) for number in (5, 6, 7)])
    shard.coming.extend([(0, ModelRequest(is_joining=True)), (0, push(1, 2**20))])
    shard.coming.append((-1, ShardBatch(torch.tensor([0, 0]), torch.tensor([6, 2**20]))))
    strategy = tacit.KBatchSync(k=2, shards=2)
    ParameterServer(strategy, shard, ServerState(2, has_left=[False] * 2)).serve()
    assert [report.number for _, report in shard.sent] == [0, 1, 5, 6, 2**20]
    leader = SpeakingServer(2, torch.zeros(4), steps=1)
    leader.coming.extend([(0, push(0, number)) for number in range(3)])
    leader.coming.extend([(-3, ShardReport(0, number)) for number in (2, 0, 1)])
    ParameterServer(strategy, leader, ServerState(2, has_left=[False] * 2)).serve()
    assert leader.sent[0][1].numbers.tolist() == [0, 1]


def test_a_learner_joins_the_first_shard_last():
    """No other shard gives it a later version than the first, which would count pushes that the first one drops."""
    run = simulate(
        tacit.KBatchSync(k=2, shards=2), SEVERAL_TENSORS, steps=20, latency_s=0.1, faults=[tacit.Join(rank=2, at_s=3.0)]
    )
    events = sorted((event for event in run.trace if event.rank == 2), key=lambda event: event.time_s)
    messages = [event for event in events if event.label in (ModelRequest.kind, ServedModel.kind)]
    joined = [(event.kind, event.peer) for event in messages if event.kind in ("send", "receive")]
    assert joined[:4] == [("send", -3), ("receive", -3), ("send", -1), ("receive", -1)]


@pytest.mark.parametrize(
    ("source", "report"),
    [(0, ShardReport(0, 0)), (-4, ShardReport(0, 0)), (-1, ShardReport(0, 0)), (-3, ShardReport(9, 0))],
)
def test_a_report_that_no_shard_can_send_is_refused(source: int, report: ShardReport, caplog):
    leader = SpeakingServer(2, torch.zeros(4), steps=1)
    leader.coming.extend([(1, push(0)), (source, report), (1, ServerLeave()), (0, push(0)), (-3, ShardReport(0, 0))])
    leader.coming.append((-3, ShardReport(1, 0)))
    ParameterServer(tacit.KAsync(k=1, shards=2), leader, ServerState(1, has_left=[False] * 2)).serve()
    assert "the server refused a message" in caplog.text


@pytest.mark.parametrize("compressor", [tacit.TopK(k=2), tacit.QSGD(bits=4), tacit.RandomK(k=3)], ids=str)
def test_both_ends_of_a_link_know_the_same(compressor):
    """Up: what the server makes of a gradient is the learner's own estimate of it.

    Down: the learner's model is what the server believes it to be.
    """
    kind = tacit.KAsync(k=1, compressor=compressor, model_compressor=compressor)
    draw = np.random.default_rng(1)
    learner = SimpleNamespace(random=np.random.default_rng(2))
    server = ScriptedServer(2, torch.zeros(8, dtype=torch.float64))
    gradients, models = GradientChannels(kind, server), ModelChannels(kind, server)
    to_server = gradient_channel(kind, learner, server.parameters)
    from_server = model_channel(kind, learner, server.parameters)
    mine, known = to_server.new_state(server.parameters), known_model_state(from_server, server.parameters)
    target, model = torch.from_numpy(draw.standard_normal(8)), torch.from_numpy(draw.standard_normal(8))
    for number in range(200):
        body = to_server.encode(mine, target, 1.0, 0.1)
        opened = gradients.decode(1, ServerPush(number, 0, 0.1, 1.0, math.nan, body))
        torch.testing.assert_close(opened.body, mine.own["estimate"], rtol=0, atol=0)
        said = models.encode(1, ServedModel(number, model))
        assert isinstance(said.body, Update) and said.version == number
        heard = from_server.decode(known, said.body, 1.0)
    torch.testing.assert_close(opened.body, target, rtol=1e-6, atol=1e-6)  # EF21: the error goes to zero
    torch.testing.assert_close(heard, model, rtol=1e-6, atol=1e-6)
    models.reset(1)  # a learner that has just joined gets an uncompressed model, and compressed ones after it
    assert models.encode(1, ServedModel(5, model)).body.dtype == torch.float64
    assert models.encode(1, ServedModel(6, model)).body.__class__ is Update


@pytest.mark.parametrize("timing_only", [True, False], ids=["events", "fibers"])
def test_a_learner_of_k_batch_sync_has_one_push_under_way(timing_only: bool):
    """A push takes ten times as long as a step, so that a learner which did not wait would fill the link."""
    cluster = tacit.Cluster(workers=4, compute=tacit.Exponential(mean_s=0.1), latency_s=1.0)
    problem = workloads.quadratic(dimension=3)
    run = tacit.simulate(problem, tacit.KBatchSync(k=2), cluster=cluster, steps=12, timing_only=timing_only)
    under_way = dict.fromkeys(range(4), 0)
    for event in sorted(run.trace, key=lambda event: event.time_s):
        if event.label == ServerPush.kind and event.kind == "receive":
            under_way[event.peer] -= 1
        elif event.label == ServerPush.kind and event.kind == "send":
            under_way[event.rank] += 1
            assert under_way[event.rank] == 1, event


# AdaSync.


def chosen(strategy: tacit.AdaSync, losses: list[float], workers: int = 8) -> list[int]:
    """Return k after each interval, whose mini-batches all had one of ``losses``."""
    server, state, ks = ScriptedServer(workers, torch.zeros(4)), ServerState(strategy.base.k), []
    for loss in losses:
        for _ in range(strategy.every):
            version, state.version = state.version, state.version + 1
            state.k = strategy.next_k(server, state, [(0, push(version, loss=loss))])
        ks.append(state.k)
    return ks


@pytest.mark.parametrize(
    ("rule", "initial", "expected"),
    [("square-root", 1, [1, 1, 2, 3, 4]), ("quadratic", 1, [1, 1, 2, 3, 4]), ("quadratic", 2, [2, 3, 3, 5, 6])],
)
def test_k_follows_the_loss_by_the_rule(rule, initial, expected):
    """§4.5: F_0/F of 2, 4, 9, 20 give 1.41, 2, 3, 4.47 by the square root and 1.38, 1.87, 2.63, 3.56 by the quadratic
    rule.
    """
    strategy = tacit.AdaSync(tacit.KAsync(k=initial), every=3, rule=rule)
    ratios = [1, 2, 4, 9, 20]
    assert chosen(strategy, [10 / ratio for ratio in ratios]) == expected
    assert [round(theory.adasync_k(rule, initial, 8, ratio)) for ratio in ratios] == expected


def test_the_first_loss_is_that_of_the_model_all_begin_with():
    """F_0 = F(w_0): the weighted mean of the pushes of version 0, late ones too, and not the mean of the first
    interval.
    """
    strategy, state = tacit.AdaSync(tacit.KBatchAsync(k=1), every=2), ServerState(1)
    server, ks = ScriptedServer(100, torch.zeros(4)), []
    for batch in ([push(0, loss=16.0)], [push(1, loss=0.0)], [push(0, loss=64.0, weight=3.0)], [push(3, loss=4.0)]):
        state.version += 1
        state.k = strategy.next_k(server, state, [(0, one) for one in batch])
        ks.append(state.k)
    assert ks[1] == round(math.sqrt(16 / 8))
    assert ks[3] == round(math.sqrt((16 + 3 * 64) / 4 / ((3 * 64 + 4) / 4)))


@pytest.mark.filterwarnings("ignore::tacit.SpeedBias")  # a slow learner, on split data
def test_in_a_run_the_first_loss_is_the_one_the_history_begins_with():
    """Split data and no noise: each learner's first push has its own loss at w_0, and their mean is F(w_0).

    A resumed server keeps it.
    """
    strategy = tacit.AdaSync(tacit.KAsync(k=1), every=20)
    run = simulate(strategy, steps=60, lr=0.02, speed={4: 0.05})
    memory = run.server[0]["state"]["memory"]
    assert memory["first_sum"] / memory["first_weight"] == pytest.approx(run.history[0]["loss"], rel=1e-12)
    assert memory["first_weight"] == 5
    resumed = simulate(strategy, steps=90, lr=0.02, start=run).server[0]["state"]["memory"]
    assert (resumed["first_sum"], resumed["first_weight"]) == (memory["first_sum"], 5)


def test_k_may_be_chosen_again_by_time():
    """At the first update at least ``every_s`` after the last choice, however many updates that takes."""
    strategy, server, state = (
        tacit.AdaSync(tacit.KBatchAsync(k=1), every_s=1.0),
        ScriptedServer(8, torch.zeros(4)),
        ServerState(1),
    )
    changed = []
    for time_s, loss in ((0.0, 16.0), (0.9, 1.0), (1.2, 1.0), (1.4, 16.0), (2.1, 16.0), (2.3, 16.0)):
        state.version += 1
        server.time_s = time_s
        k = strategy.next_k(server, state, [(0, push(state.version - 1, loss=loss))])
        if k != state.k:
            changed.append((time_s, k))
        state.k = k
    assert changed == [(1.2, round(math.sqrt(16 / 6))), (2.3, 1)]


@pytest.mark.slow
def test_in_a_run_intervals_are_of_equal_time():
    strategy = tacit.AdaSync(tacit.KBatchAsync(k=1), every_s=1.5)
    workload = workloads.quadratic(dimension=5, condition=3.0, noise=0.01)
    run = simulate(strategy, workload, steps=150, lr=0.2, workers=6)
    times_s = [note.time_s for note in notes(run, "k")]
    assert len(times_s) > 3 and all(later - earlier >= 1.5 for earlier, later in itertools.pairwise(times_s))
    updates = [note.time_s for note in notes(run, "update")]
    for time_s in times_s[1:]:  # the first update of an interval chooses
        assert time_s in updates
    assert simulate(strategy, workload, steps=150, lr=0.2, workers=6).digest == run.digest


def test_a_known_least_loss_raises_k_sooner():
    plain, told = (tacit.AdaSync(tacit.KBatchAsync(k=1), every=1, f_star=f_star) for f_star in (0.0, 1.0))
    assert chosen(plain, [5.0, 1.25]) == [1, 2]
    assert chosen(told, [5.0, 1.25]) == [1, 4]
    assert chosen(told, [5.0, 1.0]) == [1, round(math.sqrt(4 / 1e-12))]  # the server keeps it within P


def test_each_kind_has_its_rule_unless_told():
    assert chosen(tacit.AdaSync(tacit.KBatchSync(k=1), every=1), [20.0, 1.0, 0.1]) == [1, 4, 14]
    assert chosen(tacit.AdaSync(tacit.KSync(k=1), every=1), [20.0, 1.0, 0.1]) == [1, 4, 7]
    with pytest.raises(ValueError, match=r"workers=1: AdaSync with base=KSync\(k=1\) needs at least two workers"):
        simulate(tacit.AdaSync(tacit.KSync(k=1)), workers=1)
    with pytest.raises(ValueError, match="with workers=4 needs k at most 3"):
        simulate(tacit.AdaSync(tacit.KSync(k=4)), workers=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_k_rises_as_a_run_gets_better(kind):
    workload = workloads.quadratic(dimension=5, condition=3.0, noise=0.01)
    run = simulate(tacit.AdaSync(kind(k=1), every=10), workload, steps=150, lr=0.2, workers=6)
    ks = [int(note.value) for note in notes(run, "k")]
    assert ks[0] == 1 < max(ks) <= 6 and all(1 <= k <= 6 for k in ks)
    times = [note.time_s for note in notes(run, "k")]
    sizes = np.array([(note.time_s, 1) for note in notes(run, "staleness")])
    updates = [note.time_s for note in notes(run, "update")]
    last = [(sizes[:, 0] == update).sum() for update in updates if update > times[-1]]
    assert set(last) <= {ks[-1]}


def test_adasync_shards_and_compresses_as_its_kind_does():
    strategy = tacit.AdaSync(tacit.KSync(k=1, shards=2, compressor=tacit.TopK(fraction=0.5)), every=5)
    run = simulate(strategy, SEVERAL_TENSORS, steps=60, lr=0.05, latency_s=0.05)
    assert run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]
    assert max(note.value for note in notes(run, "k")) > 1


def test_adasync_needs_the_loss():
    with pytest.raises(tacit.MisplacedCall, match="needs the loss"):
        simulate(tacit.AdaSync(tacit.KAsync(k=1)), timing_only=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tacit.KSync(k=0), "k=0 must be a whole number, at least 1"),
        (lambda: tacit.KAsync(k=2, shards=0), "shards=0 must be at least 1"),
        (lambda: tacit.KAsync(k=1, rate=0.1), "must be a rate such as StalenessRate"),
        (lambda: tacit.KAsync(k=1, rate=tacit.StalenessRate(c=1.0), shards=2), "use shards=1"),
        (lambda: tacit.KSync(k=1, rate=tacit.RescaledRate()), "KSync cancels slow learners.*use KAsync or KBatchAsync"),
        (lambda: tacit.AdaSync(tacit.Ringleader()), "must be a server strategy with a k"),
        (lambda: tacit.KAsync(k=1, maximum_staleness=-1), "maximum_staleness=-1 must be at least 0"),
        (lambda: tacit.StalenessRate(c=0.0), "c=0.0 must be positive"),
        (lambda: tacit.StalenessRate(c=1.0, maximum=-1.0), "maximum=-1.0 must be positive"),
        (lambda: tacit.KSync(k=1, feedback=tacit.EF21()), "needs a compressor; add compressor=… or remove feedback"),
        (lambda: tacit.KSync(k=1, model_compressor=0.1), "model_compressor=0.1 must be a compressor"),
        (lambda: tacit.AdaSync(tacit.AllReduce()), "must be a server strategy with a k, such as KAsync"),
        (lambda: tacit.AdaSync(tacit.KAsync(k=1), every=0), "every=0 must be at least 1"),
        (lambda: tacit.AdaSync(tacit.KAsync(k=1), every_s=0.0), "every_s=0.0 must be positive"),
        (lambda: tacit.AdaSync(tacit.KAsync(k=1), every=5, every_s=1.0), "every=5 and every_s=1.0 exclude each other"),
        (lambda: tacit.AdaSync(tacit.KAsync(k=1), rule="cubic"), "rule='cubic' must be one of"),
        (lambda: simulate(tacit.KSync(k=9)), "k=9 is more learners than workers=5; use k=5"),
        (lambda: simulate(tacit.KSync(k=1, shards=2)), "shards=2 is more than the 1 parameter tensors"),
    ],
)
def test_bad_arguments_say_the_way_out(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        tacit.KAsync(k=2),
        tacit.KAsync(k=1, maximum_staleness=1),
        tacit.KAsync(k=1, maximum_staleness=3),
        tacit.KBatchAsync(k=2, maximum_staleness=1),
        tacit.AdaSync(tacit.KAsync(k=1), every=3),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::tacit.SpeedBias")  # a slow learner, on split data
def test_at_the_end_nobody_is_left_waiting_for_an_answer(strategy):
    """On real processes a learner that is not answered would never come to know that the last update is made."""
    for steps in range(20, 30):
        run = simulate(strategy, steps=steps, workers=4, speed={3: 0.1}, host="greenlet")
        pushed = [e.peer for e in run.trace.of("receive") if (e.rank, e.label) == (-1, "push")]
        answered = [e.peer for e in run.trace.of("send") if (e.rank, e.label) == (-1, "model")]
        assert sorted(pushed) == sorted(answered)


# The old name of model_compressor.


def test_down_is_the_old_name_of_model_compressor():
    top = tacit.TopK(fraction=0.5)
    new = tacit.AdaSync(tacit.KAsync(k=1, model_compressor=top))
    with pytest.warns(DeprecationWarning, match=r"KAsync\(down=…\) is deprecated .* use model_compressor=…"):
        assert tacit.AdaSync(tacit.KAsync(k=1, down=top)) == new  # type: ignore[call-arg]
    old_text = "AdaSync(KAsync(k=1, down=TopK(fraction=0.5)))"
    with pytest.warns(DeprecationWarning, match="use model_compressor=…"):
        assert tacit.strategy(old_text) == new
    with pytest.raises(ValueError, match="down is the old name of model_compressor, and both are given; remove down"):
        tacit.strategy("KAsync(k=1, down=TopK(fraction=0.5), model_compressor=TopK(fraction=0.5))")


def test_a_run_folder_with_the_old_name_can_be_resumed(tmp_path):
    strategy = tacit.KBatchAsync(k=1, model_compressor=tacit.TopK(fraction=0.5))
    folder = simulate(strategy, steps=4).save(tmp_path / "run")
    described = folder / "run.json"
    assert "model_compressor=" in described.read_text()
    described.write_text(described.read_text().replace("model_compressor=", "down="))
    before = tacit.Run.load(folder)
    assert before.strategy == str(strategy)
    assert simulate(strategy, steps=6, start=before).status == "finished"


def test_k_of_p_is_the_old_name_of_the_base_class():
    with pytest.warns(DeprecationWarning, match="use tacit.strategies.servers.ParameterServerStrategy"):
        assert tacit.strategies.servers.KofP is tacit.strategies.servers.ParameterServerStrategy
