"""Laws of gossip: what averaging with neighbours keeps, how fast models agree, and what compression and one-way edges
do to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import Tensor

import tacit
from tacit import workloads
from tacit.core.state_io import restore
from tacit.record.trace import NOTE
from tacit.strategies import Strategy
from tacit.strategies.gossip.asynchronous import AsynchronousState
from tacit.strategies.gossip.choco import CHOCOState
from tacit.strategies.gossip.members import agree_on_round
from tacit.strategies.gossip.neighbours import GossipMessage, GossipState, _received, rounds_to_reach_all
from tacit.strategies.gossip.sgp import SGPState
from tacit.theory import GraphTheory
from tests.strategies.troubles import troubles

DIMENSION = 12
QUADRATIC = workloads.quadratic(dimension=DIMENSION, condition=5.0, noise=0.5, heterogeneity=1.0)
TOP = tacit.TopK(k=3)
IRREGULAR = tacit.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3), (4, 0), (3, 4)], directed=True)


class Watched:
    """A strategy whose nodes begin with models of their own, and are watched: ``before`` and ``after`` the round of
    every step.
    """

    def __init__(self, strategy: Strategy, starts: Tensor) -> None:
        kind, self.starts = type(strategy), starts
        self._before, self._after = {}, {}

        def init(this: Strategy, worker: tacit.Worker) -> object:
            if kind is tacit.CHOCO:  # neighbours believe in the common start, from where the nodes have gone their ways
                state = kind.init(this, worker)
            worker.parameters.copy_(starts[worker.rank])
            return state if kind is tacit.CHOCO else kind.init(this, worker)

        def after_step(this: Strategy, worker: tacit.Worker, state: object) -> None:
            self._before[worker.step, worker.rank] = worker.parameters.clone()
            kind.after_step(this, worker, state)
            self._after[worker.step, worker.rank] = worker.parameters.clone()

        values = {field.name: getattr(strategy, field.name) for field in dataclasses.fields(strategy)}
        self.strategy = type(kind.__name__, (kind,), {"init": init, "after_step": after_step})(**values)

    def before(self, step: int) -> Tensor:
        return torch.stack([self._before[step, rank] for rank in range(len(self.starts))])

    def after(self, step: int) -> Tensor:
        return torch.stack([self._after[step, rank] for rank in range(len(self.starts))])

    def run(self, steps: int, lr: float = 0.0, seed: int = 0, **cluster: object) -> tacit.Run:
        made = tacit.Cluster(workers=len(self.starts), **cluster)
        schedule = None if lr else lambda step: 0.0  # η = 0: pure averaging
        return tacit.simulate(
            QUADRATIC, self.strategy, cluster=made, steps=steps, lr=lr or 0.1, seed=seed, schedule=schedule
        )


def starts(workers: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((workers, DIMENSION)))


def gamma(models: Tensor) -> float:
    return float((models - models.mean(0)).square().sum())


# What is kept.


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.DPSGD(topology=tacit.Star()),
        tacit.DPSGD(topology=tacit.OnePeer()),
        tacit.SGP(topology=tacit.ExponentialGraph()),
        tacit.CHOCO(topology=tacit.Ring(), compressor=TOP, gamma=0.3),
        tacit.CHOCO(topology=tacit.Star(), compressor=tacit.QSGD(bits=2), gamma=0.3),
    ],
    ids=str,
)
def test_gossip_preserves_the_mean(strategy: Strategy):
    watched = Watched(strategy, starts(6))
    run = watched.run(steps=20)
    for step in (1, 7, 20):
        torch.testing.assert_close(watched.after(step).mean(0), watched.starts.mean(0), rtol=0, atol=1e-12)
    assert 0 < gamma(watched.after(20)) < gamma(watched.after(1)) < gamma(watched.starts)
    torch.testing.assert_close(run.parameters, watched.starts.mean(0), rtol=0, atol=1e-12)


@pytest.mark.slow
@given(
    cluster=troubles(loses_messages=False),
    topology=draw.sampled_from([tacit.Complete(), tacit.Ring(), tacit.Star(), IRREGULAR]),
    seed=draw.integers(0, 2**30),
)
@settings(deadline=None, max_examples=25)
def test_whatever_interleaves_asynchronous_averaging_conserves_the_sum(cluster, topology, seed):
    """Everybody asks everybody along any edge, odd cycles and one-way ones included: nobody waits for ever, and nothing
    is lost.
    """
    watched = Watched(tacit.AsynchronousDPSGD(topology=topology), starts(5, seed))
    run = watched.run(steps=12, seed=seed, **cluster)
    torch.testing.assert_close(run.parameters, watched.starts.mean(0), rtol=0, atol=1e-12)


def test_an_asynchronous_exchange_that_nothing_disturbs_is_the_papers_update():
    """Both end with the mean, and the update is that of the gradient at the model from before."""
    watched = Watched(tacit.AsynchronousDPSGD(), starts(2))
    watched.run(steps=1, lr=0.1, compute=tacit.Constant(mean_s=0.02), speed={1: 0.5}, latency_s=0.0)
    stepped = Watched(tacit.DPSGD(), watched.starts)
    stepped.run(steps=1, lr=0.1)
    update = stepped.before(1)[0] - watched.starts[0]
    torch.testing.assert_close(watched.before(1)[0], watched.starts.mean(0) + update, rtol=0, atol=1e-12)


def test_two_asynchronous_nodes_in_lockstep_train_as_well_as_synchronous_ones():
    """Both ask each other at once.

    Halves in both exchanges made models swap instead of meeting: the loss rose above 10 in these steps.
    """
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.02))
    asynchronous, synchronous = (
        tacit.simulate(workloads.digits(), strategy, cluster=cluster, steps=100, lr=0.1)
        for strategy in (tacit.AsynchronousDPSGD(), tacit.AllReduce())
    )
    assert asynchronous.history[-1]["loss"] == pytest.approx(synchronous.history[-1]["loss"], rel=0.05)


# How fast models agree.


@pytest.mark.parametrize("topology", [tacit.Ring(), tacit.Hypercube()], ids=str)
def test_a_round_of_dpsgd_shrinks_the_slowest_mode_by_the_second_eigenvalue(topology: tacit.Topology):
    eigenvalues, modes = torch.linalg.eigh(topology.mixing(8))
    watched = Watched(tacit.DPSGD(topology=topology), modes[:, -2:-1].expand(8, DIMENSION) + 3.0)
    watched.run(steps=6)
    gammas = [gamma(watched.starts), *(gamma(watched.after(step)) for step in range(1, 7))]
    for before, after in itertools.pairwise(gammas):
        assert after / before == pytest.approx(float(eigenvalues[-2]) ** 2, rel=1e-9)
    assert 1 - math.sqrt(gammas[1] / gammas[0]) == pytest.approx(GraphTheory(topology, 8).spectral_gap, rel=1e-9)


@pytest.mark.parametrize("topology", [tacit.Ring(), tacit.Star(), tacit.OnePeer()], ids=str)
def test_a_round_of_dpsgd_is_the_mixing_matrix_however_far_neighbours_are_ahead(topology: tacit.Topology):
    watched = Watched(tacit.DPSGD(topology=topology), starts(5))
    watched.run(
        steps=25, lr=0.1, compute=tacit.Pareto(minimum_s=0.01, shape=1.2), speed={3: 0.2}, bandwidth_bytes_per_s=1e4
    )
    for step in range(1, 26):
        torch.testing.assert_close(
            watched.after(step), topology.mixing(5, step - 1) @ watched.before(step), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    "strategy", [tacit.DPSGD(topology=tacit.OnePeer()), tacit.SGP(topology=tacit.OnePeer())], ids=str
)
def test_one_peer_a_round_averages_2_to_the_k_nodes_in_k_rounds(strategy: Strategy):
    watched = Watched(strategy, starts(8))
    watched.run(steps=3)
    assert gamma(watched.after(2)) > 1
    torch.testing.assert_close(watched.after(3), watched.starts.mean(0).expand(8, -1), rtol=0, atol=1e-12)


def test_dpsgd_on_the_complete_graph_is_synchronous_sgd():
    """After each step's average everybody holds AllReduce's model: momentum is linear, so local ones serve as well."""
    common = {"cluster": tacit.Cluster(workers=4), "steps": 30, "lr": 0.1, "momentum": 0.9, "evaluate_every": 1}
    gossip, reduced = (
        tacit.simulate(workloads.digits(), s, **common)
        for s in (tacit.DPSGD(topology=tacit.Complete()), tacit.AllReduce())
    )
    torch.testing.assert_close(gossip.parameters, reduced.parameters, rtol=0, atol=1e-5)
    for one, other in zip(gossip.history, reduced.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


# One-way edges.


def test_push_sum_finds_the_mean_where_plain_averaging_does_not():
    watched = Watched(tacit.SGP(topology=IRREGULAR), starts(5))
    run = watched.run(steps=120)
    mean, mixing = watched.starts.mean(0), IRREGULAR.mixing(5)
    torch.testing.assert_close(watched.after(120), mean.expand(5, -1), rtol=0, atol=1e-9)
    torch.testing.assert_close(run.parameters, mean, rtol=0, atol=1e-9)
    plain = torch.linalg.matrix_power(mixing, 120) @ watched.starts
    torch.testing.assert_close(plain.mean(0), mean, rtol=0, atol=1e-9)  # columns sum to 1
    assert float((plain - mean).abs().max(1).values.min()) > 0.05  # and yet nobody has it
    with pytest.raises(ValueError, match=r"does not converge to the mean; use SGP\(topology=Graph"):
        Watched(tacit.DPSGD(topology=IRREGULAR), watched.starts).run(steps=1)


@pytest.mark.slow
def test_sgp_trains_on_a_graph_that_favours_some_nodes():
    """The gradient is that of z: the same optimum as AllReduce's, though weights differ threefold."""
    common = {"cluster": tacit.Cluster(workers=5), "steps": 150, "schedule": tacit.InverseTime(offset=20.0), "lr": 0.3}
    losses = [
        tacit.simulate(QUADRATIC, s, **common).history[-1]["loss"]
        for s in (tacit.SGP(topology=IRREGULAR), tacit.AllReduce())
    ]
    start = tacit.simulate(QUADRATIC, tacit.AllReduce(), **common).history[0]["loss"]
    assert losses[0] - losses[1] < 0.01 * (start - losses[1])


# Compressed differences.


@pytest.mark.slow
def test_choco_agrees_linearly_where_compressed_models_stall():
    """Γ falls by the same factor in every stretch of rounds; averaging what compression leaves of the models themselves
    stops at its error.
    """
    topology, step = tacit.Ring(), 0.4
    watched = Watched(tacit.CHOCO(topology=topology, compressor=TOP, gamma=step), starts(5))
    watched.run(steps=150)
    falls = [math.log(gamma(watched.after(at + 50)) / gamma(watched.after(at))) for at in (50, 100)]
    assert gamma(watched.after(150)) < 1e-4 * gamma(watched.starts)
    assert falls[1] == pytest.approx(falls[0], rel=0.3)
    mixing, naive, random = topology.mixing(5), watched.starts.clone(), np.random.default_rng(0)
    for _ in range(150):
        heard = torch.stack([TOP.compress(model, random).dense() for model in naive])
        naive += step * (mixing @ heard - heard)
    assert gamma(naive) > 1e-2 * gamma(watched.starts)


def test_choco_that_says_everything_is_dpsgd():
    choco = tacit.CHOCO(topology=tacit.Ring(), compressor=tacit.Dense(), gamma=1.0)
    common = {"cluster": tacit.Cluster(workers=5), "steps": 40, "lr": 0.1, "momentum": 0.9, "evaluate_every": 5}
    said, whole = (tacit.simulate(workloads.digits(), s, **common) for s in (choco, tacit.DPSGD(topology=tacit.Ring())))
    torch.testing.assert_close(said.parameters, whole.parameters, rtol=0, atol=1e-5)
    for one, other in zip(said.history[1:], whole.history[1:], strict=True):
        assert one["spread"] == pytest.approx(other["spread"], rel=1e-3)


def test_an_unbiased_compressor_that_does_not_contract_is_scaled_until_it_does():
    """Rand-k times d/k errs by ω = 2 times the vector's square; unscaled, what is believed would run away."""
    watched = Watched(tacit.CHOCO(compressor=tacit.RandomK(k=4, scaled=True), gamma=0.3), starts(5))
    watched.run(steps=100)
    assert gamma(watched.after(100)) < 1e-2 * gamma(watched.starts)


# What is said, kept and refused.


@pytest.mark.parametrize("strategy", [tacit.DPSGD(), tacit.CHOCO(compressor=TOP)], ids=str)
def test_words_that_are_lost_end_the_run_and_the_next_are_never_taken_for_them(strategy: Strategy):
    cluster = tacit.Cluster(workers=4, faults=[tacit.MessageLoss(probability=0.01)])
    with pytest.raises(
        tacit.RunError,
        match=r"is in round \d+ and received round \d+ from rank \d: a message was lost; use a strategy that",
    ):
        tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=60)


def test_bytes_are_those_of_the_models_sent_to_each_neighbour():
    model_bytes = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    for strategy, neighbours in (
        (tacit.DPSGD(topology=tacit.Torus()), 4),
        (tacit.SGP(), 1),
        (tacit.AsynchronousDPSGD(), 2),
    ):
        run = tacit.simulate(workloads.digits(), strategy, cluster=tacit.Cluster(workers=9), steps=10, timing_only=True)
        sent = [event for event in run.trace if event.kind == "send"]
        assert len(sent) == 9 * 10 * neighbours
        assert all(0 <= event.size_bytes - model_bytes < 100 for event in sent)


def test_a_partner_that_is_gone_is_let_go():
    cluster = tacit.Cluster(workers=5, faults=[tacit.Crash(rank=2, at_s=0.3)])
    run = tacit.simulate(workloads.digits(), tacit.AsynchronousDPSGD(), cluster=cluster, steps=100, lr=0.2)
    assert [event for event in run.trace if event.kind == NOTE and event.label == "skipped"]
    assert run.status == "finished" and run.history[-1]["metric"] > 0.85


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_news_reach_everybody_within_the_diameter(size: int):
    for topology in (tacit.Ring(), tacit.Complete(), tacit.Star(), tacit.ExponentialGraph()):
        assert rounds_to_reach_all(topology, size) == GraphTheory(topology, size).diameter
    assert rounds_to_reach_all(tacit.OnePeer(), size) >= GraphTheory(tacit.OnePeer(), size).diameter


def test_checkpoints_with_the_field_names_of_version_0_1_are_restored():
    empty, own, mixed = torch.empty(0), torch.ones(2), torch.zeros(2)
    choco = restore(
        CHOCOState(estimate=empty, mixed_estimates=empty), {"news": 5, "believed": own, "around": mixed}, None
    )
    assert choco.last_data_round == 5 and torch.equal(choco.estimate, own) and torch.equal(choco.mixed_estimates, mixed)
    assert restore(SGPState(pushed=empty), {"news": 5, "pushed": own}, None).last_data_round == 5
    assert restore(AsynchronousState(empty, empty), {"buffer": own, "base": own, "asked": 3}, None).requested == 3


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: tacit.DPSGD(topology=4), r"topology=4 must be a topology such as Ring\(\)"),
        (lambda: tacit.CHOCO(gamma=0), r"gamma=0 must be above 0 and at most 1"),
        (lambda: tacit.CHOCO(compressor=3), r"compressor=3 must be a compressor such as TopK"),
        (lambda: tacit.CHOCO(compressor=tacit.Lattice(bits=8)), r"which differences do not have; use QSGD\(bits=8\)"),
    ],
)
def test_what_makes_no_gossip_is_refused(make, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize("topology", [tacit.OnePeer(), tacit.ExponentialGraph()], ids=str)
def test_choco_refuses_neighbours_that_change_or_do_not_answer(topology: tacit.Topology):
    with pytest.raises(ValueError, match="must be undirected and the same in all rounds"):
        tacit.simulate(QUADRATIC, tacit.CHOCO(topology=topology), cluster=tacit.Cluster(workers=4), steps=1)


def test_members_that_agree_on_a_round_agree_on_the_last_one_with_data():
    """Its news may not have reached all of them, and they end together when it is old enough."""
    sent: dict[int, torch.Tensor] = {}

    class Others:
        def all_reduce_mean(self, parts, extra_state):
            sent[len(sent)] = torch.cat([parts[0], torch.tensor(parts[1], dtype=torch.float64)])
            return sum(sent.values()) / 3  # of three members

    members = [0, 2, 5]
    for rank, step, last_data_round in ((0, 7, 3), (2, 8, 1), (5, 6, 5)):
        state = GossipState(last_data_round=last_data_round)
        worker = SimpleNamespace(rank=rank, step=step, network=Others())
        agree_on_round(worker, state, members)
    assert (state.members, state.first_round, state.last_data_round) == (members, 9, 5)


def test_messages_of_earlier_rounds_are_dropped():
    coming = [GossipMessage(number, 0, torch.zeros(1)) for number in (148, 149, 348)]
    network = SimpleNamespace(receive=lambda kind, source: (source, coming.pop(0)))
    assert _received(SimpleNamespace(rank=2, step=348, network=network), 1).round == 348  # type: ignore[arg-type]
