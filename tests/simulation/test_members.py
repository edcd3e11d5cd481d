"""Runs that go on with other members: lost workers, and workers that return or join."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import workloads

QUADRATIC = workloads.quadratic(dimension=12, noise=0.0, condition=2.0, heterogeneity=1.0)
TOP = tacit.TopK(fraction=0.3)
COMMON = [  # all workers have one model after a round
    tacit.AllReduce(),
    tacit.DDP(),
    tacit.LocalSGD(period=tacit.Every(5)),
    tacit.LocalSGD(period=tacit.Every(6), fragments=3),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=3)),
    tacit.LocalSGD(period=tacit.Every(4), outer=tacit.OuterSGD(lr=0.7, momentum=0.5)),
    tacit.LocalSGD(period=tacit.LossPeriod(initial=3), compressor=TOP),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.Sign(), aggregate="scatter"),
    tacit.CompressedGradient(compressor=TOP),
    tacit.CompressedGradient(compressor=TOP, aggregate="scatter"),
    tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Plus()),
    tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Bidirectional(master=TOP), aggregate="scatter"),
    tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback()),
]
OVERLAPPED = [
    tacit.LocalSGD(period=tacit.Every(6), overlap_steps=2),
    tacit.LocalSGD(period=tacit.Every(6), fragments=2, overlap_steps=2, mix=0.5),
]
APART = [
    tacit.DPSGD(topology=tacit.Ring()),
    tacit.SGP(topology=tacit.OnePeer()),
    tacit.CHOCO(topology=tacit.Ring(), compressor=tacit.QSGD(bits=8), gamma=0.5),
]
RETURN, LATE = tacit.Crash(rank=2, at_s=20.5, for_s=4.0), tacit.Join(rank=1, at_s=15.0)
SCHEDULE = [RETURN, tacit.Crash(rank=0, at_s=10.2), LATE, tacit.Crash(rank=2, at_s=34.9, for_s=0.1)]


def simulate(strategy: tacit.Strategy, faults=(), steps: int = 40, **cluster) -> tacit.Run:
    cluster = {"compute": tacit.Exponential(mean_s=1.0), "latency_s": 0.01, "min_workers": 2, **cluster}
    place = tacit.Cluster(workers=5, faults=list(faults), **cluster)
    return tacit.simulate(QUADRATIC, strategy, cluster=place, steps=steps, lr=0.1, seed=1)


def watched(strategy: tacit.Strategy, told: list) -> tacit.Strategy:
    """Return the strategy, which tells generation, rank, members, model and state after every ``regrouped``."""

    class Watched(type(strategy)):
        def regrouped(self, worker, state, members):
            super().regrouped(worker, state, members)
            generation = worker.world.members.generation
            told.append((generation, worker.rank, tuple(members), worker.parameters.clone(), state))

    values = {name: getattr(strategy, name) for name in strategy.__dataclass_fields__ if not name.startswith("_")}
    return Watched(**values)


@pytest.mark.parametrize("strategy", [*COMMON, *OVERLAPPED, *APART], ids=str)
def test_a_run_goes_on_with_other_members(strategy):
    told: list = []
    run = simulate(watched(strategy, told), SCHEDULE)
    assert run.status == "finished" and run.history[-1]["step"] == 40
    assert run.history[-1]["loss"] < 0.8 * run.history[0]["loss"]
    members = [row[2] for row in sorted(told, key=lambda row: row[0])]
    assert members[0] == (0, 2, 3, 4) and members[-1] == (1, 2, 3, 4)
    sent = sum(event.size_bytes for event in run.trace.of("exchange", "send"))
    assert sent == run.summary()["bytes_sent"]


@pytest.mark.parametrize("strategy", [*COMMON, *OVERLAPPED], ids=str)
def test_a_joiner_begins_with_the_model_that_a_member_has(strategy):
    """Its initial model would be averaged in otherwise."""
    told: list = []
    simulate(watched(strategy, told), [RETURN, LATE])
    members = {generation: ranks for generation, _, ranks, _, _ in told}
    let_in = [(joiner, g) for g in members if g > 1 for joiner in {*members[g]} - {*members[g - 1]}]
    assert [joiner for joiner, _ in let_in] == [1, 2]
    for joiner, generation in let_in:
        models = {rank: model for number, rank, _, model, _ in told if number == generation}
        assert sorted(models) == list(members[generation])
        assert any(torch.equal(models[joiner], model) for rank, model in models.items() if rank != joiner)
        if strategy in COMMON and getattr(strategy, "fragments", 1) == 1:
            assert all(torch.equal(model, models[joiner]) for model in models.values())


def test_a_joiner_in_the_middle_of_an_overlapped_round_has_the_moments_and_the_result_of_a_member():
    in_progress: list[int] = []

    class Watched(tacit.LocalSGD):
        def regrouped(self, worker, state, members):
            in_progress.append(sum(fragment.rounds.pending is not None for fragment in state.fragments))

    place = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.3, "min_workers": 2, "regroup_s": 0.0}
    cluster = tacit.Cluster(workers=4, faults=[tacit.Join(rank=3, at_s=4.5)], **place)
    moments = {"momentum": 0.9, "optimizer_state": "average"}
    strategy = Watched(period=tacit.Every(4), fragments=2, overlap_steps=2)
    run = tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=20, lr=0.02, seed=1, **moments)
    assert run.status == "finished"
    assert in_progress == [0, 0, 0, 1, 1, 1, 1]  # at the start without worker 3, and when it is let in


def test_a_member_that_is_paused_comes_to_the_door_when_it_wakes():
    faults = [tacit.Crash(rank=3, at_s=4.5), tacit.Pause(rank=1, at_s=4.2, for_s=2.0)]
    compute = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.0, "speed": {3: 0.5}}
    run = simulate(tacit.LocalSGD(period=tacit.Every(4)), faults, steps=8, **compute)
    [time_s] = {note.time_s for note in run.trace.of("note") if note.label == "members"}
    assert time_s == pytest.approx(6.4)


def test_local_progress_of_those_who_are_left_is_never_lost():
    """Who has waited in a round since before the loss gives it the same model; the mean is that of the members."""
    steps = tacit.LocalSGD(period=tacit.OneShot())
    crash = tacit.Crash(rank=2, at_s=11.0)
    cluster = {"compute": tacit.Constant(mean_s=1.0), "speed": {0: 2.0}, "faults": [crash]}
    told: list = []
    place = tacit.Cluster(workers=4, min_workers=3, **cluster)
    run = tacit.simulate(QUADRATIC, watched(steps, told), cluster=place, steps=12, lr=0.1, seed=1)
    models = {rank: model for _, rank, _, model, _ in told}
    assert sorted(models) == [0, 1, 3]
    torch.testing.assert_close(run.parameters, torch.stack(list(models.values())).mean(0))
    assert all(sum(e.kind == "compute" for e in run.trace if e.rank == rank) == 12 for rank in models)


def test_an_exchange_in_progress_is_repeated_without_the_lost_worker():
    """Its number stays, the part that was sent is counted, and the repeated one takes its time again."""
    cluster = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.0, "bandwidth_bytes_per_s": 100.0}
    whole = simulate(tacit.LocalSGD(period=tacit.Every(4)), steps=4, **cluster)
    first = whole.trace.of("exchange")[0]
    assert first.start_s == 4.0 and first.time_s > 4.2
    lasts_s = max(event.time_s for event in whole.trace.of("exchange")) - 4.0
    crash = tacit.Crash(rank=3, at_s=4.0 + lasts_s / 4)
    run = simulate(tacit.LocalSGD(period=tacit.Every(4)), [crash], steps=4, **cluster)
    broken = [event for event in run.trace.of("exchange") if event.time_s == crash.at_s]
    again = [event for event in run.trace.of("exchange") if event.time_s > crash.at_s]
    assert [event.rank for event in broken] == [0, 1, 2, 3, 4] and [event.rank for event in again] == [0, 1, 2, 4]
    assert {event.round for event in run.trace.of("exchange")} == {1}
    parts = [(crash.at_s - 4.0) / (event.time_s - 4.0) * event.size_bytes for event in whole.trace.of("exchange")]
    assert sum(event.size_bytes for event in broken) == pytest.approx(sum(parts), abs=3)
    assert again[0].start_s == pytest.approx(crash.at_s + 0.2)


def test_a_lost_worker_costs_the_time_of_regrouping_and_a_joiner_its_transfer():
    cluster = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.0, "bandwidth_bytes_per_s": 1e3}
    strategy = tacit.LocalSGD(period=tacit.Every(4))
    run = simulate(strategy, [tacit.Crash(rank=3, at_s=2.5, for_s=2.0)], steps=12, regroup_s=0.5, **cluster)
    seen = {note.time_s: note.value for note in run.trace.of("note") if note.label == "members"}
    assert list(seen.values()) == [4.0, 5.0] and next(iter(seen)) == pytest.approx(4.5)
    [donor, joiner] = sorted((e for e in run.trace.of("exchange") if e.label == "join"), key=lambda e: e.rank)
    assert (donor.rank, joiner.rank) == (0, 3) and donor.size_bytes >= 12 * 4 and joiner.size_bytes == 0
    [waited] = [event for event in run.trace.of("fault") if event.label == "at the door"]
    assert (waited.rank, waited.start_s, waited.time_s) == (3, 4.5, list(seen)[1])
    assert list(seen)[1] == pytest.approx(donor.start_s + 0.0 + (donor.time_s - donor.start_s))


def test_with_too_few_members_the_run_ends_and_names_all_that_are_lost():
    faults = [tacit.Crash(rank=rank, at_s=5.0 + rank) for rank in (0, 1, 3, 4)]
    with pytest.raises(
        tacit.PeerLost,
        match=r"workers 0, 1, 3 and 4 were lost at 9 s and all-reduce .* needs at least 2 workers \(min_workers\), of "
        r"which 1 are left; remove a fault, or lower min_workers",
    ) as caught:
        simulate(tacit.LocalSGD(period=tacit.Every(20)), faults)
    assert caught.value.ranks == (0, 1, 3, 4) and caught.value.run is not None
    with pytest.raises(tacit.PeerLost, match=r"were lost at 9\.5 s and the run needs"):
        simulate(tacit.LocalSGD(period=tacit.OneShot()), [*faults, tacit.Crash(rank=2, at_s=9.5)])


def test_without_min_workers_a_loss_ends_the_run_as_before():
    with pytest.raises(tacit.PeerLost, match="needs every worker"):
        simulate(tacit.AllReduce(), [tacit.Crash(rank=2, at_s=5.0)], min_workers=None)
    with pytest.raises(ValueError, match=r"remove it, or set min_workers=4, or use"):
        simulate(tacit.AllReduce(), [LATE], min_workers=5)
    with pytest.raises(tacit.PeerLost, match="needs every worker"):
        groups = tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(5)), groups=2)
        simulate(groups, [tacit.Crash(rank=2, at_s=5.0)])


def test_a_run_with_members_and_without_faults_is_the_run_without():
    for strategy in (tacit.AllReduce(), OVERLAPPED[0], APART[0], COMMON[8]):
        assert simulate(strategy).digest == simulate(strategy, min_workers=None).digest


def test_a_joiner_that_is_lost_at_the_door_is_not_let_in():
    faults = [tacit.Crash(rank=3, at_s=2.5, for_s=2.0), tacit.Crash(rank=3, at_s=6.0)]
    run = simulate(
        tacit.LocalSGD(period=tacit.Every(8)), faults, steps=24, compute=tacit.Constant(mean_s=1.0), latency_s=0.0
    )
    assert {note.value for note in run.trace.of("note") if note.label == "members"} == {4.0}


def test_a_worker_lost_while_members_stand_at_the_door_is_not_waited_for():
    faults = [tacit.Crash(rank=3, at_s=2.5), tacit.Crash(rank=1, at_s=4.3)]
    compute = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.0, "speed": {1: 0.5}}
    run = simulate(tacit.LocalSGD(period=tacit.Every(4)), faults, steps=8, **compute)
    assert [note.value for note in run.trace.of("note") if note.label == "members" and note.rank == 0] == [3.0]


def test_estimates_of_ef21_add_up_to_the_sum_whoever_comes_and_goes():
    """Their mean does not change with the members, so that no byte is sent for it."""
    for feedback in (tacit.EF21(), tacit.EF21Weighted(weights=[1, 2, 3, 4, 5]), tacit.EF21Momentum(eta=0.5)):
        told: list = []
        strategy = tacit.CompressedGradient(compressor=TOP, feedback=feedback)

        class Added(type(strategy)):
            def before_step(self, worker, state):
                super().before_step(worker, state)
                told.append((worker.step, worker.rank, state))  # noqa: B023 - one loop turn

        states: dict[int, object] = {}
        run = simulate(Added(compressor=TOP, feedback=feedback), SCHEDULE)
        states = {rank: state for _, rank, state in told}
        left = [states[rank] for rank in (1, 2, 3, 4)]
        gains = [feedback.gain(state.rank, state.ranks) for state in left]
        total = sum(gain * state.own["estimate"] for gain, state in zip(gains, left, strict=True))
        for state in left:
            torch.testing.assert_close(state.shared["sum"], total, rtol=1e-9, atol=1e-9)
        joins = [event for event in run.trace.of("exchange") if event.label == "join"]
        assert joins and {event.label for event in run.trace.of("exchange")} == {"all-gather", "join"}


def test_errors_of_lost_workers_are_lost_and_a_joiner_owes_nothing():
    told: list = []
    feedback = tacit.ErrorFeedback()
    simulate(watched(tacit.CompressedGradient(compressor=TOP, feedback=feedback), told), [RETURN])
    rows = [row for row in told if row[1] == 2]
    assert len(rows) == 1 and rows[0][2] == (0, 1, 2, 3, 4)
    state = feedback.begin(0, 3, torch.zeros(4))
    state.own["error"] += 1.0
    feedback.regrouped(state, 0, [0, 2], None)
    assert (state.rank, state.ranks, state.own["error"].sum()) == (0, [0, 2], 4.0)
    resumed = feedback.merged([state, state], 1, 2)  # by two workers, which are all there are
    assert (resumed.rank, resumed.ranks) == (1, [0, 1])
    feedback.regrouped(state, 1, [0, 1, 2], None)  # a copy of rank 0's, on rank 1
    assert (state.rank, state.ranks, state.own["error"].sum()) == (1, [0, 1, 2], 0.0)


def test_push_sum_begins_anew_with_weights_of_one():
    weights: list[float] = []

    class Told(tacit.SGP):
        def regrouped(self, worker, state, members):
            super().regrouped(worker, state, members)
            weights.append(float(state.pushed[-1]))

    assert simulate(Told(), SCHEDULE, steps=30).status == "finished"
    assert len(weights) > 10 and set(weights) == {1.0}


@pytest.mark.parametrize(
    ("topology", "ranks", "members"),
    [
        (tacit.Ring(), 6, (0, 2, 3, 5)),
        (tacit.Star(), 5, (1, 2, 4)),
        (tacit.Hypercube(), 8, (0, 1, 2, 4, 7)),
        (tacit.Graph([(0, 1), (1, 2), (2, 3), (3, 4)]), 5, (0, 2, 4)),
        (tacit.Graph([(0, 1), (1, 2), (2, 0), (2, 3), (3, 0)], directed=True), 4, (0, 1, 3)),
    ],
    ids=str,
)
def test_a_topology_among_the_members_is_connected(topology, ranks, members):
    from tacit.topology.among import among

    graph = among(topology, ranks, members)
    for phase in range(graph.cycle(len(members))):
        mixing = graph.mixing(len(members), phase)  # raises where ranks are cut off
        torch.testing.assert_close(mixing.sum(0), torch.ones(len(members), dtype=torch.float64))
