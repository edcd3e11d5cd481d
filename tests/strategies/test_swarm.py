"""SwarmSGD's laws: what is conserved whatever interleaves, how fast models agree, and what happens to words that cannot
be decoded.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import Tensor

import tacit
from tacit import workloads
from tacit.core.state_io import restore, store
from tacit.record.trace import COMPUTE, NOTE, SEND, WAIT
from tacit.strategies import Strategy
from tacit.strategies.swarm.messages import SwarmRequest, SwarmResponse
from tacit.strategies.swarm.pull import PullSwarmState
from tacit.strategies.swarm.state import SwarmState
from tacit.theory import GraphTheory
from tests.strategies.troubles import troubles

DIMENSION = 6
QUADRATIC = workloads.quadratic(dimension=DIMENSION, condition=2.0, noise=0.0)
NOWHERE = {"latency_s": 0.0, "bandwidth_bytes_per_s": math.inf}  # messages arrive as soon as they are sent
LATTICE = tacit.Lattice(bits=8)


class Watched:
    """A strategy whose nodes begin with models of their own, and whose states can be looked at."""

    def __init__(self, strategy: Strategy, workers: int, seed: int = 0) -> None:
        self.starts = torch.from_numpy(np.random.default_rng(seed).standard_normal((workers, DIMENSION)))
        self.states: dict[int, SwarmState] = {}
        self.kind = type(strategy)

        def init(this: Strategy, worker: tacit.Worker) -> object:
            worker.parameters.copy_(self.starts[worker.rank])
            self.states[worker.rank] = self.kind.init(this, worker)
            return self.states[worker.rank]

        values = {field.name: getattr(strategy, field.name) for field in dataclasses.fields(strategy)}
        self.strategy = type(self.kind.__name__, (self.kind,), {"init": init, **self.hooks()})(**values)

    def hooks(self) -> dict[str, object]:
        return {}

    @property
    def buffers(self) -> Tensor:
        return torch.stack([self.states[rank].buffer for rank in sorted(self.states)])

    def run(
        self, steps: int, lr: float = 0.0, workload: workloads.Workload = QUADRATIC, seed: int = 0, **cluster: object
    ) -> tacit.Run:
        made = tacit.Cluster(workers=len(self.starts), **cluster)
        schedule = None if lr else lambda step: 0.0  # η = 0: pure averaging
        return tacit.simulate(
            workload, self.strategy, cluster=made, steps=steps, lr=lr or 0.1, seed=seed, schedule=schedule
        )


def notes(run: tacit.Run, name: str) -> list[float]:
    return [event.value for event in run.trace if event.kind == NOTE and event.label == name]


def gamma(models: Tensor) -> float:
    return float((models - models.mean(0)).square().sum())


# What is conserved.


@pytest.mark.slow
@given(
    cluster=troubles(loses_messages=True),
    local_steps=draw.sampled_from([1, 2, tacit.Geometric(mean=2)]),
    two_stage=draw.booleans(),
    lattice=draw.sampled_from(
        [None, LATTICE, tacit.Lattice(bits=4, side=1e-3), tacit.Lattice(bits=6, stochastic=True)]
    ),
    seed=draw.integers(0, 2**30),
)
@settings(deadline=None, max_examples=25)
def test_whatever_interleaves_the_sum_of_the_models_stays(cluster, local_steps, two_stage, lattice, seed):
    """Delays, pauses, cuts, lost messages, words said again: at the end nothing was added that was not taken away."""
    strategy = tacit.SwarmSGD(local_steps=local_steps, compressor=lattice, two_stage=two_stage and lattice is not None)
    watched = Watched(strategy, 5, seed)
    run = watched.run(steps=12, seed=seed, **cluster)
    torch.testing.assert_close(run.parameters, watched.starts.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [
        (tacit.SwarmSGD(local_steps=1, blocking=True), 1e-12),
        (tacit.SwarmSGD(local_steps=1, blocking=True, compressor=LATTICE), 0.05),  # about s: 2 · 2 · distance / 255
        (tacit.SwarmSGD(local_steps=1, blocking=True, topology=tacit.Ring()), 1e-12),
    ],
    ids=str,
)
def test_two_sided_averaging_preserves_the_mean(strategy: tacit.SwarmSGD, allowed: float):
    watched = Watched(strategy, 8)
    run = watched.run(steps=64)
    assert gamma(watched.starts) > 20
    torch.testing.assert_close(run.parameters, watched.starts.mean(0), rtol=0, atol=allowed)


@pytest.mark.slow
def test_pull_only_does_not_preserve_the_mean():
    away = []
    for seed in range(8):
        watched = Watched(tacit.PullSwarm(local_steps=1), 8, seed)
        run = watched.run(steps=32, seed=seed)
        away.append(float((run.parameters - watched.starts.mean(0)).square().sum()))
    assert np.sqrt(np.mean(away) / DIMENSION) > 0.1  # of models that are 1 apart


# How fast models agree.


class EveryInteraction(Watched):
    """Writes Γ of the buffers down after every completed exchange."""

    def hooks(self) -> dict[str, object]:
        self.gammas = [gamma(self.starts)]

        def on_message(this: Strategy, worker, state, source, message) -> None:
            self.kind.on_message(this, worker, state, source, message)
            if isinstance(message, SwarmResponse):
                self.gammas.append(gamma(self.buffers))

        return {"on_message": on_message}


def test_models_agree_by_one_part_in_n_minus_1_per_interaction():
    """§2.8(1): E Γ_{t+1} / Γ_t = 1 − 1/(n − 1) on the complete graph."""
    workers, ratios = 16, []
    for seed in range(6):
        watched = EveryInteraction(tacit.SwarmSGD(local_steps=1), workers, seed)
        watched.run(steps=20, seed=seed, **NOWHERE)
        ratios += [after / before for before, after in zip(watched.gammas, watched.gammas[1:], strict=False)]
    assert len(ratios) > 1500
    assert np.mean(ratios) == pytest.approx(1 - 1 / (workers - 1), rel=0.02)
    assert np.std(ratios) / math.sqrt(len(ratios)) < 0.003  # enough of them to tell 1/15 from 1/16 and 1/14 at least


class EveryRound(Watched):
    """Records Γ of the buffers whenever rank 0 ends a step: with a meeting after every step, once a round."""

    def hooks(self) -> dict[str, object]:
        self.gammas: list[float] = []

        def after_step(this: Strategy, worker, state) -> None:
            if worker.rank == 0:
                self.gammas.append(gamma(self.buffers))
            self.kind.after_step(this, worker, state)

        return {"after_step": after_step}


LOCKSTEP = {"compute": tacit.Constant(mean_s=0.02), **NOWHERE}  # all nodes ask at the same moment


@pytest.mark.parametrize("lattice", [None, LATTICE])
def test_two_nodes_that_ask_each_other_at_once_meet_in_the_middle(lattice: tacit.Lattice | None):
    watched = EveryRound(tacit.SwarmSGD(local_steps=1, compressor=lattice), 2)
    watched.run(steps=2, **LOCKSTEP)
    assert watched.gammas[1] < 1e-3 * watched.gammas[0]


def test_two_nodes_in_lockstep_train_as_well_as_two_that_wait_for_each_other():
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.02))
    without_waiting, blocking = (
        tacit.simulate(
            workloads.digits(), tacit.SwarmSGD(local_steps=8, blocking=b), cluster=cluster, steps=120, lr=0.1
        )
        for b in (False, True)
    )
    assert without_waiting.history[-1]["loss"] == pytest.approx(blocking.history[-1]["loss"], rel=0.05)


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("topology", [tacit.Complete(), tacit.Ring()], ids=str)
def test_nodes_that_all_ask_at_once_agree_as_fast_as_the_theory_says(topology: tacit.Topology):
    """On the complete graph 0.347 of Γ is left with 16 nodes; one pair after another leaves (1 − 1/(n − 1))ⁿ = 0.332
    per n exchanges.
    """
    workers, ratios = 16, []
    theory = GraphTheory(topology, workers)
    angles = 2 * np.pi / workers * np.arange(workers)
    slowest = torch.from_numpy(np.cos(angles[:, None] + np.arange(DIMENSION)))  # on both graphs
    for seed in range(60):
        watched = EveryRound(tacit.SwarmSGD(local_steps=1, topology=topology), workers, seed)
        watched.starts = slowest
        watched.run(steps=2, seed=seed, **LOCKSTEP)
        ratios.append(watched.gammas[1] / watched.gammas[0])
    error = np.std(ratios) / math.sqrt(len(ratios))
    assert np.mean(ratios) == pytest.approx(theory.simultaneous_contraction(rounds=20_000), abs=4 * error)
    assert error < 0.01, error
    assert np.mean(ratios) < 1.1 * theory.contraction**workers


class Walks(Watched):
    """Writes down every node's model after every step."""

    def hooks(self) -> dict[str, object]:
        self.models: dict[tuple[int, int], Tensor] = {}

        def after_step(this: Strategy, worker, state) -> None:
            self.kind.after_step(this, worker, state)
            self.models[worker.rank, worker.step] = worker.parameters.clone()

        return {"after_step": after_step, **dict.fromkeys(("hook_free_steps", "untouched_steps"), lambda *_: 0)}


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize(("local_steps", "part"), [(1, 1.0), (tacit.Geometric(mean=4), 0.25)], ids=str)
def test_matchings_take_off_their_part_of_gamma(local_steps: int | tacit.Geometric, part: float):
    """Each of the n/2 pairs of a matching takes off 1/(n − 1) of Γ.

    Geometric: each pair meets with probability 1/mean.
    """
    workers, ratios = 8, []
    for seed in range(60):
        watched = Walks(tacit.SwarmSGD(local_steps=local_steps, blocking=True), workers, seed)
        watched.run(steps=12, seed=seed)
        steps = [gamma(torch.stack([watched.models[r, t] for r in range(workers)])) for t in range(1, 12)]
        gammas = [gamma(watched.starts), *steps]
        ratios += [after / before for before, after in itertools.pairwise(gammas) if before > 1e-9]
    expected = 1 - part * workers / (2 * (workers - 1))
    assert np.mean(ratios) == pytest.approx(expected, abs=4 * np.std(ratios) / math.sqrt(len(ratios)))
    assert np.std(ratios) / math.sqrt(len(ratios)) < 0.01


def spread(strategy: Strategy, lr: float, **problem: float) -> float:
    """Return the models' mean spread in a run that begins at the optimum."""
    workload = workloads.quadratic(dimension=10, condition=2.0, **problem)
    run = tacit.simulate(
        workload, strategy, cluster=tacit.Cluster(workers=8), steps=120, lr=lr, evaluate_every=3, start=torch.zeros(10)
    )
    return float(np.mean([row["spread"] for row in run.history[10:]]))


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("problem", "power"), [({"noise": 1.0, "heterogeneity": 0.0}, 1), ({"noise": 0.0, "heterogeneity": 1.0}, 2)]
)
def test_spread_grows_with_the_rate_squared_and_with_local_steps(blocking: bool, problem: dict, power: int):
    """§2.8(4): Γ ~ η²; ~ H where it comes from noise, ~ H² where it comes from different data."""
    often, seldom = (tacit.SwarmSGD(local_steps=h, blocking=blocking) for h in (1, 4))
    small, large = spread(seldom, 0.0025, **problem), spread(seldom, 0.01, **problem)
    assert math.log(large / small) / math.log(4) == pytest.approx(2, abs=0.2)
    steps_slope = math.log(small / spread(often, 0.0025, **problem)) / math.log(4)
    assert steps_slope == pytest.approx(power, abs=0.4)


# What an exchange is.


@pytest.mark.parametrize("local_steps", [1, 5])
def test_two_blocking_nodes_are_local_sgd(local_steps: int):
    cluster, common = tacit.Cluster(workers=2), {"steps": 40, "lr": 0.2, "momentum": 0.9}
    swarm = tacit.SwarmSGD(local_steps=local_steps, blocking=True)
    local = tacit.LocalSGD(period=tacit.Every(local_steps))
    pairwise, averaged = (tacit.simulate(workloads.digits(), s, cluster=cluster, **common) for s in (swarm, local))
    torch.testing.assert_close(pairwise.parameters, averaged.parameters, rtol=0, atol=1e-6)
    for one, other in zip(pairwise.history, averaged.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_an_exchange_that_nothing_disturbs_is_the_papers_update():
    """X_i = (X_i + X_j)/2 − η h_i with all of the initiator's progress; X_j = (X_i + X_j)/2, its working model as it
    was.
    """
    watched = Walks(tacit.SwarmSGD(local_steps=2), 2)
    watched.run(steps=3, lr=0.1, compute=tacit.Constant(mean_s=0.02), speed={1: 0.1}, **NOWHERE)
    own, other = watched.starts
    alone = Walks(tacit.SwarmSGD(local_steps=2), 1)
    alone.run(steps=3, lr=0.1)
    learnt = own - alone.models[0, 3]  # what three steps from the same start change: the answer came within the third
    torch.testing.assert_close(watched.models[0, 2], alone.models[0, 2], rtol=0, atol=1e-12)
    torch.testing.assert_close(watched.models[0, 3], (own + other) / 2 - learnt, rtol=0, atol=1e-12)
    slow = Walks(tacit.SwarmSGD(local_steps=9), 2)  # nobody asks: what node 1 does by itself
    slow.run(steps=3, lr=0.1, compute=tacit.Constant(mean_s=0.02), speed={1: 0.1}, **NOWHERE)
    torch.testing.assert_close(watched.models[1, 1], slow.models[1, 1], rtol=0, atol=1e-12)


# Words that cannot be decoded.


def test_an_overflow_is_found_counted_and_said_again_never_averaged_in():
    """A side far too fine for models that are 1 apart: every first word overflows, and yet models go where full
    precision brings them.
    """
    fine = tacit.SwarmSGD(local_steps=1, compressor=tacit.Lattice(bits=8, side=3e-5))
    lattice, whole = Watched(fine, 6), Watched(tacit.SwarmSGD(local_steps=1), 6)
    said, told = (watched.run(steps=10, **NOWHERE) for watched in (lattice, whole))
    overflows = Counter(notes(said, "overflow"))
    assert set(overflows) == {8, 16} and overflows[8] > 20  # 16 bits reach ±1, not always far enough
    again = [event for event in said.trace if event.kind == SEND and event.label == "swmore"]
    assert len(again) == sum(overflows.values())
    torch.testing.assert_close(lattice.buffers, whole.buffers, rtol=0, atol=1e-3)  # twenty roundings by half a side
    torch.testing.assert_close(said.parameters, told.parameters, rtol=0, atol=1e-12)


def test_the_side_follows_the_measured_distance():
    """As models agree the lattice becomes finer: the error is a part of the distance, not of the models."""
    watched = EveryInteraction(tacit.SwarmSGD(local_steps=1, compressor=LATTICE), 8)
    watched.starts += 1e3
    run = watched.run(steps=60, **NOWHERE)
    assert gamma(watched.starts) > 20 and gamma(watched.buffers) < 1e-9  # sides of a fixed 1e-2 would leave 1e-4
    assert len(notes(run, "overflow")) < 0.1 * len(notes(run, "staleness"))


@pytest.mark.parametrize("two_stage", [False, True])
def test_distances_between_models_that_have_not_moved_do_not_count(two_stage: bool):
    """Rank 1 is asked before it or rank 0 has published a step.

    What it measures then is rounding, far too small a side for its own first request.
    """
    strategy = tacit.SwarmSGD(local_steps=2, compressor=LATTICE, two_stage=two_stage)
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.02), speed={1: 0.6}, **NOWHERE)
    start = torch.ones(DIMENSION, dtype=torch.float64)
    run = tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=8, lr=0.01, start=start)
    asked = [event.rank for event in run.trace if event.kind == SEND and event.label == "swask"]
    assert asked[:2] == [0, 1]
    assert not notes(run, "overflow")


def test_eight_bits_move_a_quarter_of_the_bytes_and_two_stages_half():
    sizes = {}
    for name, strategy in {
        "whole": tacit.SwarmSGD(),
        "one": tacit.SwarmSGD(compressor=LATTICE),
        "two": tacit.SwarmSGD(compressor=LATTICE, two_stage=True),
    }.items():
        run = tacit.simulate(workloads.digits(), strategy, cluster=tacit.Cluster(workers=4), steps=40, lr=0.1)
        words = [e.size_bytes for e in run.trace if e.kind == SEND and e.label in ("swask", "swans")]
        sizes[name] = float(np.median(words))
    assert sizes["one"] / sizes["whole"] == pytest.approx(1 / 4, abs=0.02)
    assert sizes["two"] / sizes["whole"] == pytest.approx(1 / 2, abs=0.03)


# Nobody waits, and nodes come and go.


def ends(run: tacit.Run, rank: int) -> list[float]:
    return [event.time_s for event in run.trace if event.kind == COMPUTE and event.rank == rank]


def test_a_partner_that_stands_still_stops_nobody():
    """Everybody else takes its steps at the very moments at which it would have taken them, and goes on averaging."""
    strategy, steps = tacit.SwarmSGD(local_steps=2), 80
    well = tacit.simulate(QUADRATIC, strategy, cluster=tacit.Cluster(workers=4), steps=steps)
    paused = tacit.Cluster(workers=4, faults=[tacit.Pause(rank=1, at_s=0.2, for_s=100.0)])
    ill = tacit.simulate(QUADRATIC, strategy, cluster=paused, steps=steps)
    for rank in (0, 2, 3):
        assert ends(ill, rank) == ends(well, rank)
    last_s = max(ends(ill, 0))
    answered = [e for e in ill.trace if e.kind == SEND and e.label == "swans" and 0.8 * last_s < e.time_s < last_s]
    assert {event.rank for event in answered} == {0, 2, 3}
    assert not [
        e for e in ill.trace if e.kind == WAIT and e.rank != 1 and e.start_s < min(ends(ill, r)[-1] for r in (0, 2, 3))
    ]


@pytest.mark.slow
def test_a_lost_node_is_asked_once_by_each_and_the_rest_goes_on():
    crash = tacit.Crash(rank=2, at_s=0.3)
    cluster = tacit.Cluster(workers=5, faults=[crash])
    run = tacit.simulate(workloads.digits(), tacit.SwarmSGD(local_steps=1), cluster=cluster, steps=100, lr=0.2)
    asked = Counter(
        e.rank for e in run.trace if e.kind == SEND and e.peer == 2 and e.label == "swask" and e.time_s > 0.3
    )
    assert set(asked) == {0, 1, 3, 4} and max(asked.values()) == 1
    assert run.status == "finished" and run.history[-1]["metric"] > 0.85


@pytest.mark.parametrize(
    ("strategy", "fault", "latency_s"),
    [
        (tacit.SwarmSGD(local_steps=2), tacit.Join(rank=1, at_s=1.0), 1e-4),
        (tacit.PullSwarm(local_steps=2), tacit.Crash(rank=1, at_s=0.5, for_s=0.5), 1e-4),
        # Back before others noticed, and asked before it has a model:
        (tacit.SwarmSGD(local_steps=2), tacit.Crash(rank=1, at_s=0.9, for_s=0.1), 0.15),
    ],
    ids=str,
)
def test_one_who_comes_late_takes_a_trained_model_and_never_gives_its_own(strategy, fault, latency_s):
    far = torch.full(
        (DIMENSION,), 1e6, dtype=torch.float64
    )  # where all begin; after a second they are a hundred times nearer
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.02), faults=[fault], latency_s=latency_s)
    run = tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=100, lr=0.2, start=far, evaluate_every=1, seed=5)
    came = next(e.time_s for e in run.trace if e.kind == "fault" and e.label in ("join", "return"))
    before = min(row["loss"] for row in run.history if row["time_s"] < came)
    after = [row["loss"] for row in run.history if row["time_s"] > came]
    assert (
        before < 1e-3 * run.history[0]["loss"] and max(after) < 100 * before
    )  # a tenth of a fresh model would be a thousand times that
    assert max(event.step for event in run.trace if event.rank == 1 and event.kind == COMPUTE) == 100


# What it says, keeps and refuses.


def test_every_interaction_notes_the_age_of_the_buffer_it_read():
    run = tacit.simulate(QUADRATIC, tacit.SwarmSGD(local_steps=4), cluster=tacit.Cluster(workers=8), steps=100)
    answers = [event for event in run.trace if event.kind == SEND and event.label == "swans"]
    ages = notes(run, "staleness")
    assert len(ages) == len(answers) > 100
    assert min(ages) >= 0 and 1 < np.mean(ages) < 5  # published every four steps


class Halfway(Watched):
    """Stores a node's state in the middle of everything."""

    def hooks(self) -> dict[str, object]:
        self.stored: list[tuple[SwarmState, object]] = []

        def on_message(this: Strategy, worker, state, source, message) -> None:
            self.kind.on_message(this, worker, state, source, message)
            if isinstance(message, SwarmRequest) and worker.step > 5:
                self.stored.append((state, store(state)))

        return {"on_message": on_message}


@pytest.mark.parametrize("lattice", [None, LATTICE])
def test_a_state_with_exchanges_under_way_can_be_stored_and_restored(lattice: tacit.Lattice | None):
    watched = Halfway(tacit.SwarmSGD(local_steps=2, compressor=lattice), 4)
    watched.run(steps=10, lr=0.1)
    assert any(stored["applied"] and stored["points"] for _, stored in watched.stored)
    for state, stored in watched.stored:
        again = restore(SwarmState(torch.empty(0), torch.empty(0)), stored, None)
        assert dataclasses.asdict(again).keys() == dataclasses.asdict(state).keys()
        assert again.requested == stored["requested"] and all(
            torch.equal(again.applied[n], stored["applied"][n]) for n in stored["applied"]
        )
    merged = watched.strategy.merged(list(watched.states.values()), 5, 6)
    torch.testing.assert_close(merged.buffer, watched.buffers.mean(0))
    assert not merged.requested and not merged.applied


def test_a_checkpoint_with_the_field_names_of_version_0_1_is_restored():
    own, theirs = torch.ones(2), torch.zeros(2)
    fields = {"buffer": own, "base": theirs, "due": 8, "meetings": 3, "begun": 4, "in_flight": 12, "asked_at": 2}
    fields |= {"has_answer": True, "asked": {12: 1}, "given": {7: own}, "silent": [2], "is_member": False}
    state = restore(SwarmState(torch.empty(0), torch.empty(0)), {**fields, "is_closed": True}, None)
    assert torch.equal(state.buffer, own) and torch.equal(state.applied[7], own)
    assert (state.exchanges, state.started, state.requested_at, state.requested) == (3, 4, 2, {12: 1})
    assert (state.has_response, state.unresponsive, state.is_ready, state.is_finished) == (True, [2], False, True)
    pulled = restore(
        PullSwarmState(torch.empty(0), 0), {"window": own, "due": 8, "meetings": 3, "is_member": False}, None
    )
    assert torch.equal(pulled.snapshot, own) and (pulled.due, pulled.exchanges, pulled.is_ready) == (8, 3, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"local_steps": 0}, r"local_steps=0 must be a whole number, at least 1, or Geometric\(mean=4\)"),
        (
            {"compressor": tacit.TopK(k=1)},
            r"compressor=TopK\(k=1\) cannot be decoded against a neighbour's model; use Lattice\(bits=8\)",
        ),
        ({"two_stage": True}, r"two_stage=True needs compressor=Lattice\(bits=8\) and blocking=False"),
        ({"topology": 4}, r"topology=4 must be a topology such as Complete\(\)"),
    ],
)
def test_what_makes_no_swarm_is_refused(arguments: dict, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        tacit.SwarmSGD(**arguments)


def meetings(run: tacit.Run, rank: int) -> list[tuple[int, int]]:
    """Return the steps after which a node met another one, and which."""
    step, found = 0, []
    for event in (event for event in run.trace if event.rank == rank):
        step = event.step if event.kind == COMPUTE else step
        if event.kind == NOTE and event.label == "met":
            found.append((step, int(event.value)))
    return found


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_blocking_nodes_draw_their_own_geometric_local_steps(workers: int):
    """Both partners come to a meeting after the same step of the run, with different numbers of steps since their last
    meetings.
    """
    mean, steps = 4, 600
    strategy = tacit.SwarmSGD(local_steps=tacit.Geometric(mean=mean), blocking=True)
    run = tacit.simulate(
        QUADRATIC, strategy, cluster=tacit.Cluster(workers=workers), steps=steps, timing_only=True, seed=1
    )
    met = {rank: meetings(run, rank) for rank in range(workers)}
    assert all((step, rank) in met[other] for rank in met for step, other in met[rank])
    assert workers == 2 or len({tuple(step for step, _ in met[rank]) for rank in met}) == workers
    gaps = np.concatenate([np.diff([step for step, _ in met[rank]]) for rank in met])
    matched = 1 if workers % 2 == 0 else 1 - 1 / workers  # with an odd number one node has no partner
    assert np.mean(gaps) == pytest.approx(mean / matched, rel=0.15 if workers < 16 else 0.05)
    assert np.std(gaps) == pytest.approx(math.sqrt(mean * (mean - 1)) / matched, rel=0.25 if workers < 16 else 0.1)


def test_geometric_local_steps_have_their_mean():
    run = tacit.simulate(
        QUADRATIC,
        tacit.SwarmSGD(local_steps=tacit.Geometric(mean=5)),
        cluster=tacit.Cluster(workers=16),
        steps=400,
        timing_only=True,
    )
    asked = [event for event in run.trace if event.kind == SEND and event.label == "swask"]
    assert len(asked) == pytest.approx(16 * 400 / 5, rel=0.1)
    with pytest.raises(ValueError, match=r"mean=0.5 must be a number of steps, at least 1"):
        tacit.Geometric(mean=0.5)


def test_a_node_that_joins_asks_another_neighbour_where_one_is_silent():
    """Half of all messages are lost. A node that waited for its first answer would hold up the others' last round."""
    faults = [tacit.Join(rank=3, at_s=1.0), tacit.MessageLoss(probability=0.5)]
    cluster = tacit.Cluster(workers=4, compute=tacit.Exponential(mean_s=0.1), faults=faults)
    for seed in range(6):
        run = tacit.simulate(
            workloads.quadratic(dimension=3), tacit.SwarmSGD(local_steps=2), cluster=cluster, steps=300, seed=seed
        )
        assert run.status == "finished"
        asked = [event for event in run.trace if event.rank == 3 and event.kind == "send" and event.label == "swjoin"]
        received = [event for event in run.trace if event.rank == 3 and event.kind == "receive"]
        if len(asked) > 1:
            assert len({event.peer for event in asked}) > 1 and received
            return
    raise AssertionError("no request or answer was lost: the test cannot fail")
