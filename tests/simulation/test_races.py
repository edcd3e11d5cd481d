"""Runs of servers without fibers, told from runs with fibers by nothing but their speed.

A run that trains computes its models after the race, whose times do not depend on them. Where no two events coincide they are races, on a free network and on others; else they are run by events.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw

import tacit
from tacit import workloads
from tacit.strategies.servers import ParameterServerStrategy

QUADRATIC = workloads.quadratic(dimension=3)
KINDS = (tacit.KSync, tacit.KBatchSync, tacit.KAsync, tacit.KBatchAsync)
DELAYS = (
    tacit.Exponential(mean_s=1.0),
    tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=0.5),
    tacit.Pareto(minimum_s=0.1, shape=1.5),
    tacit.HyperExponential(means_s=(0.01, 1.0)),
)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def timed(strategy: ParameterServerStrategy, steps: int = 12, seed: int = 0, **rest) -> tacit.Run:
    given = {name: rest.pop(name) for name in ("host", "timing_only", "progress") if name in rest}
    cluster = tacit.Cluster(
        **{"workers": 5, "compute": DELAYS[0], "latency_s": 0.0, "bandwidth_bytes_per_s": math.inf, **rest}
    )
    return tacit.simulate(
        QUADRATIC, strategy, cluster=cluster, steps=steps, seed=seed, **{"timing_only": True, **given}
    )


def by_rank(workers: int) -> list[tacit.Delay]:
    return [DELAYS[rank % len(DELAYS)] for rank in range(workers)]


def is_race(run: tacit.Run) -> bool:
    return run.record["host"] == "race"


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    kind=draw.sampled_from(KINDS),
    k=draw.integers(1, 9),
    workers=draw.integers(1, 9),
    compute=draw.sampled_from([*DELAYS, None]),
    hosts=draw.sampled_from([None, 1]),
    speed=draw.sampled_from([{}, {0: 0.2}]),
    steps=draw.integers(1, 25),
    seed=draw.integers(0, 9),
)
def test_a_race_leaves_the_very_run_that_fibers_leave(kind, k, workers, compute, steps, seed, **cluster):
    strategy, cluster["compute"] = kind(k=min(k, workers)), compute or by_rank(workers)
    race, fibers = (timed(strategy, steps, seed, workers=workers, host=host, **cluster) for host in (None, "greenlet"))
    assert is_race(race) and not is_race(fibers)
    assert race.digest == fibers.digest
    assert race.summary() == fibers.summary()


@each_kind
@pytest.mark.parametrize("k", [1, 7, 68])
def test_so_it_does_where_a_server_must_wait_for_its_window(kind, k: int):
    race, fibers = (timed(kind(k=k), 4, workers=70, host=host) for host in (None, "greenlet"))
    assert is_race(race) and race.digest == fibers.digest


@each_kind
def test_so_it_does_where_it_is_written_in_many_parts(kind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tacit.simulation.servers.fast_servers._BUFFERED", 7)
    race, fibers = (timed(kind(k=3), 40, host=host) for host in (None, "greenlet"))
    assert is_race(race) and race.digest == fibers.digest


@each_kind
@pytest.mark.parametrize(
    ("k", "steps", "cluster"),
    [
        (1, 1, {"compute": tacit.Constant(mean_s=1.0)}),  # with the one push of the one update
        (3, 1, {"compute": tacit.Constant(mean_s=1.0), "speed": {0: 0.6}, "workers": 3}),  # with another push
        (2, 12, {"compute": tacit.Recorded(times_s=[1.0, 2.0, 3.0, math.pi])}),  # sooner or later
    ],
    ids=str,
)
def test_where_two_steps_end_at_one_moment_fibers_run(kind, k: int, steps: int, cluster: dict[str, object]):
    race, fibers = (timed(kind(k=k), steps, **cluster, host=host) for host in (None, "greenlet"))
    assert not is_race(race) and race.digest == fibers.digest


@pytest.mark.parametrize(
    ("strategy", "rest"),
    [
        (tacit.KSync(k=2), {"faults": [tacit.Slow(rank=1, factor=2.0)]}),
        (tacit.KAsync(k=2, rate=tacit.StalenessRate(c=1.0)), {"timing_only": False}),
        (tacit.KSync(k=2, compressor=tacit.TopK(k=1)), {}),
        (tacit.KSync(k=2, model_compressor=tacit.TopK(k=1)), {}),
        (tacit.Ringleader(), {}),
        (tacit.KSync(k=2), {"costs": {"update": 0.1}}),
        (tacit.KSync(k=2), {"costs": {"update": 0.1}, "latency_s": 0.1}),
    ],
    ids=str,
)
def test_whatever_else_takes_time_or_thought_takes_fibers(strategy: ParameterServerStrategy, rest: dict[str, object]):
    assert timed(strategy, **rest).record["host"] == "greenlet"


@pytest.mark.parametrize(
    "cluster",
    [
        {"compute": [*DELAYS, tacit.SlowSpells(compute=DELAYS[0])]},
        {"nics": {4: tacit.Nic(in_bytes_per_s=100.0)}},
        {"hosts": 1, "server": "rank0", "host_latency_s": 0.1},
    ],
    ids=str,
)
def test_a_race_takes_slow_spells_and_messages_that_take_time(cluster: dict[str, object]):
    race, fibers = (timed(tacit.KAsync(k=2), host=host, **cluster) for host in (None, "greenlet"))
    assert is_race(race) and race.digest == fibers.digest


@pytest.mark.parametrize(
    ("strategy", "cluster"),
    [
        (tacit.KAsync(k=2, maximum_staleness=9), {"latency_s": 0.1}),
        (tacit.KSync(k=2), {"latency_s": 0.1, "cancel": "step_end"}),
        (tacit.KSync(k=2), {"latency_s": 0.1, "bandwidth_bytes_per_s": 1e3, "hosts": 2}),  # learners share a NIC
        (tacit.KSync(k=2), {"latency_s": 0.1, "compute": tacit.Constant(mean_s=1.0)}),  # steps end together
    ],
    ids=str,
)
def test_where_a_race_cannot_decide_events_run(strategy: ParameterServerStrategy, cluster: dict[str, object]):
    events, fibers = (timed(strategy, host=host, **cluster) for host in (None, "greenlet"))
    assert events.record["host"] == "events"
    assert events.digest == fibers.digest


NETWORKS = (
    {"latency_s": 1e-4, "bandwidth_bytes_per_s": 125e6},
    {"latency_s": 0.3},
    {"latency_s": 0.01, "bandwidth_bytes_per_s": 300.0},  # a message takes half a second
    {"bandwidth_bytes_per_s": 1e3, "server": "rank0"},
    {"links": {(-1, 0): tacit.Link(latency_s=1.0), (1, -1): tacit.Link(bandwidth_bytes_per_s=1e2)}},
    {"bandwidth_bytes_per_s": 1e4, "links": {(-1, 0): tacit.Link(latency_s=1.0)}},
    {"latency_s": 0.01, "bandwidth_bytes_per_s": 1e3, "server": "rank0", "hosts": 2, "host_latency_s": 0.2},
    {"bandwidth_bytes_per_s": 300.0, "hosts": 2, "cores": 1, "nics": {-1: tacit.Nic(out_bytes_per_s=math.inf)}},
    {"nics": {0: tacit.Nic(in_bytes_per_s=200.0), -1: tacit.Nic(out_bytes_per_s=500.0)}, "header_overhead": 0.5},
)


@pytest.mark.slow
@settings(max_examples=36, deadline=None)
@given(
    kind=draw.sampled_from(KINDS),
    k=draw.integers(1, 9),
    rate=draw.sampled_from([None, tacit.InverseStaleness(), tacit.StalenessRate(c=1.0)]),
    bound=draw.sampled_from([None, 0, 1, 3]),
    network=draw.sampled_from(NETWORKS),
    cancel=draw.sampled_from(["instant", "step_end"]),
    workers=draw.integers(1, 9),
    compute=draw.sampled_from([*DELAYS, tacit.Constant(mean_s=1.0), tacit.SlowSpells(compute=DELAYS[0]), None]),
    speed=draw.sampled_from([{}, {0: 0.2}]),
    steps=draw.integers(1, 25),
    seed=draw.integers(0, 9),
)
def test_events_and_races_on_a_network_leave_the_very_run_that_fibers_leave(
    kind, k, rate, bound, network, workers, compute, steps, seed, **cluster
):
    bounded = {} if kind.cancels else {"maximum_staleness": bound}
    strategy, network = kind(k=min(k, workers), rate=rate, **bounded), {**network}
    cluster["compute"] = compute or by_rank(workers)
    if "hosts" in network:
        network["hosts"] = min(network["hosts"], workers)
    if "links" in network and workers == 1:
        del network["links"]
        network["latency_s"] = 0.1
    events, fibers = (
        timed(strategy, steps, seed, workers=workers, host=host, **network, **cluster) for host in (None, "greenlet")
    )
    assert events.record["host"] in ("race", "events") and fibers.record["host"] == "greenlet"
    assert events.digest == fibers.digest
    assert events.summary() == fibers.summary()


CONTENDED = (  # transfers take about as long as steps, so that messages share NICs
    {"latency_s": 0.01, "bandwidth_bytes_per_s": 1200.0},
    {"latency_s": 0.0, "bandwidth_bytes_per_s": 1e3},
    {"latency_s": 0.3, "bandwidth_bytes_per_s": 1e3},
    {"latency_s": 0.01, "bandwidth_bytes_per_s": 1e3, "server": "rank0"},
    {
        "latency_s": 0.01,
        "bandwidth_bytes_per_s": 500.0,
        "nics": {-1: tacit.Nic(out_bytes_per_s=1e5, in_bytes_per_s=1e5)},
    },  # slow learners
    {"latency_s": 0.01, "bandwidth_bytes_per_s": 1e4, "nics": {-1: tacit.Nic(in_bytes_per_s=1e3)}},
)


@pytest.mark.parametrize("network", CONTENDED, ids=str)
@each_kind
def test_so_does_a_race_in_which_messages_share_nics(kind, network: dict[str, object]):
    given = {"workers": 8, **network}
    race, fibers = (timed(kind(k=3), 15, host=host, **given) for host in (None, "greenlet"))
    enters_at_an_end = kind is tacit.KBatchSync and not network["latency_s"]  # its next push, where one has just left
    assert is_race(race) != enters_at_an_end and race.digest == fibers.digest


@each_kind
def test_so_does_a_race_on_a_network_that_is_written_in_many_parts(kind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tacit.simulation.servers.server_rows._BUFFERED", 7)
    race, fibers = (timed(kind(k=3), 40, host=host, latency_s=1e-4) for host in (None, "greenlet"))
    assert is_race(race) and race.digest == fibers.digest


@each_kind
@pytest.mark.parametrize("k", [1, 68])
def test_so_they_do_where_a_server_must_wait_for_its_window(kind, k: int):
    given = {"workers": 70, "latency_s": 0.05, "bandwidth_bytes_per_s": 1e5}
    race, fibers = (timed(kind(k=k), 4, host=host, **given) for host in (None, "greenlet"))
    assert is_race(race) and race.digest == fibers.digest


@each_kind
@pytest.mark.parametrize("k", [1, 7, 68])
def test_so_they_do_where_models_and_restarts_arrive_together_at_the_end(kind, k: int):
    """On a free network, which the race on a network runs where a rate is given."""
    strategy = kind(k=k, rate=tacit.InverseStaleness())
    events, fibers = (timed(strategy, 3, workers=70, host=host) for host in (None, "greenlet"))
    assert is_race(events) or kind is tacit.KSync
    assert events.digest == fibers.digest


def test_so_they_do_where_a_learner_must_wait_for_its_push_under_way():
    given = {"workers": 2, "latency_s": 300.0, "seed": 1}
    events, fibers = (timed(tacit.KBatchSync(k=150), 3, host=host, **given) for host in (None, "greenlet"))
    assert events.digest == fibers.digest  # the pushes that were held arrive together with models
    assert events.trace.of("late") == []
    gaps = [b.start_s - a.time_s for a, b in itertools.pairwise(e for e in events.trace.of("compute") if e.rank == 0)]
    assert max(gaps) > 100  # it has 64 messages in flight


def test_an_interrupted_race_on_a_network_keeps_its_past():
    def stop(step: int, *_: object) -> None:
        if step == 8:
            raise KeyboardInterrupt

    with pytest.raises(tacit.errors.Interrupted) as caught:
        timed(tacit.KSync(k=2), progress=stop, latency_s=0.01)
    kept, whole = caught.value.run, timed(tacit.KSync(k=2), latency_s=0.01, host="greenlet")
    end_s = kept.history[-1]["time_s"]
    assert [event for event in kept.trace if event.time_s < end_s] == [e for e in whole.trace if e.time_s < end_s]


def test_a_race_refuses_what_fibers_refuse():
    with pytest.raises(ValueError, match="k=6") as of_fibers:
        timed(tacit.KSync(k=6), host="greenlet")
    with pytest.raises(ValueError, match="k=6") as of_race:
        timed(tacit.KSync(k=6))
    assert str(of_race.value) == str(of_fibers.value)


@each_kind
def test_an_interrupted_race_keeps_its_whole_updates(kind):
    def stop(step: int, *_: object) -> None:
        if step == 8:
            raise KeyboardInterrupt

    with pytest.raises(tacit.errors.Interrupted) as caught:
        timed(kind(k=2), progress=stop)
    kept = caught.value.run
    assert [row["step"] for row in kept.history] == list(range(8))
    end_s = kept.history[-1]["time_s"]
    assert list(kept.trace) == [event for event in timed(kind(k=2), host="greenlet").trace if event.time_s <= end_s]


TRAINED = (
    ({}, "race"),
    ({"latency_s": 0.01, "bandwidth_bytes_per_s": 1e6}, "race"),  # messages take part of a step's time
    ({"latency_s": 0.0, "bandwidth_bytes_per_s": math.inf}, "race"),
    ({"compute": tacit.Constant(mean_s=0.02)}, "events"),
    ({"hosts": 3}, "events"),
)


def trained(strategy: tacit.Strategy, cluster: dict[str, object] | None = None, **rest: object) -> tacit.Run:
    compute = {"workers": 9, "compute": tacit.Exponential(mean_s=0.02)}
    given = {"cluster": tacit.Cluster(**{**compute, **(cluster or {})}), "steps": 12, "momentum": 0.9, "seed": 1}
    return tacit.simulate(workloads.digits(), strategy, **{**given, **rest})


@pytest.mark.parametrize(("cluster", "host"), TRAINED, ids=str)
@each_kind
def test_a_run_that_trains_ends_with_the_very_models_of_fibers(kind, cluster: dict[str, object], host: str):
    fast, fibers = (trained(kind(k=4), cluster, host=host, evaluate_every=5) for host in (None, "greenlet"))
    assert fast.record["host"] == host and fibers.record["host"] == "greenlet"
    assert fast.digest == fibers.digest
    assert torch.equal(fast.parameters, fibers.parameters)
    assert fast.history == fibers.history
    assert fast.summary() == fibers.summary()


@pytest.mark.parametrize("host", [None, "greenlet"])
def test_a_run_continues_one_without_fibers_as_one_with_them(host: str | None):
    first, fibers = (trained(tacit.KSync(k=4), steps=6, host=host) for host in (None, "greenlet"))
    assert is_race(first)
    continued, alike = (trained(tacit.KSync(k=4), start=start, host=host) for start in (first, fibers))
    assert continued.record["host"] == "greenlet"
    assert torch.equal(continued.parameters, alike.parameters) and continued.digest == alike.digest


def test_a_bounded_staleness_trains_alike_by_events():
    strategy = tacit.KBatchAsync(k=2, maximum_staleness=2)
    fast, fibers = (trained(strategy, host=host) for host in (None, "greenlet"))
    assert fast.record["host"] == "events"
    assert torch.equal(fast.parameters, fibers.parameters) and fast.digest == fibers.digest


@pytest.mark.parametrize(
    ("strategy", "rest"),
    [
        (tacit.KSync(k=2, rate=tacit.InverseStaleness()), {}),
        (tacit.KSync(k=2), {"engine": "loop"}),  # for modules with random numbers and buffers
        (tacit.KSync(k=2), {"until_loss": 0.1}),  # the run may end long before its last update
        (tacit.KSync(k=2), {"evaluate_every_s": 0.05}),
    ],
    ids=str,
)
def test_a_run_that_trains_takes_fibers_otherwise(strategy: tacit.Strategy, rest: dict[str, object]):
    assert trained(strategy, **rest).record["host"] == "greenlet"


def test_an_interrupted_run_that_trains_keeps_its_past():
    def stop(step: int, *_: object) -> None:
        if step == 8:
            raise KeyboardInterrupt

    runs = []
    for host in (None, "greenlet"):
        with pytest.raises(tacit.errors.Interrupted) as caught:
            trained(tacit.KSync(k=2), host=host, progress=stop, evaluate_every=1)
        runs.append(caught.value.run)
    kept, of_fibers = runs
    assert kept.history[:-1] == of_fibers.history[:-1]
    last, alike = kept.history[-1], of_fibers.history[-1]  # with and without the models sent at that time
    assert last["step"] == alike["step"] == 8 and last["loss"] == alike["loss"]
    assert torch.equal(kept.parameters, of_fibers.parameters)
    end_s = kept.trace.of("note")[-1].time_s
    assert [e for e in kept.trace if e.time_s < end_s] == [e for e in of_fibers.trace if e.time_s < end_s]


@pytest.mark.parametrize("lr", [1e4, 1e12])
@pytest.mark.parametrize("kind", [tacit.KSync, tacit.KAsync], ids=lambda kind: kind.__name__)
def test_a_run_that_diverges_fails_as_with_fibers(kind, lr: float):
    errors = []
    for host in (None, "greenlet"):
        with pytest.raises((tacit.errors.NotFinite, tacit.errors.BadMessage)) as caught:
            trained(kind(k=2), host=host, lr=lr, steps=40)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
