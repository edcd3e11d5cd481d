"""Races: timing-only runs without fibers, told from runs with fibers by nothing but their speed."""

from __future__ import annotations

import math

import pytest
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


def is_race(run: tacit.Run) -> bool:
    return run.record["host"] == "race"


@settings(max_examples=30, deadline=None)
@given(
    kind=draw.sampled_from(KINDS),
    k=draw.integers(1, 9),
    workers=draw.integers(1, 9),
    compute=draw.sampled_from(DELAYS),
    speed=draw.sampled_from([{}, {0: 0.2}]),
    steps=draw.integers(1, 25),
    seed=draw.integers(0, 9),
)
def test_a_race_leaves_the_very_run_that_fibers_leave(kind, k, workers, steps, seed, **cluster):
    strategy = kind(k=min(k, workers))
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
        (tacit.KSync(k=2), {"latency_s": 1e-3}),
        (tacit.KSync(k=2), {"bandwidth_bytes_per_s": 1e9}),
        (tacit.KSync(k=2), {"links": {(-1, 0): tacit.Link(latency_s=1.0)}}),
        (tacit.KSync(k=2), {"faults": [tacit.Slow(rank=1, factor=2.0)]}),
        (tacit.KSync(k=2), {"compute": tacit.SlowSpells(compute=DELAYS[0])}),
        (tacit.KSync(k=2), {"cancel": "step_end"}),
        (tacit.KSync(k=2), {"timing_only": False}),
        (tacit.KSync(k=2, compressor=tacit.TopK(k=1)), {}),
        (tacit.KAsync(k=2, maximum_staleness=1), {}),
    ],
    ids=str,
)
def test_whatever_else_takes_time_or_thought_takes_fibers(strategy: ParameterServerStrategy, rest: dict[str, object]):
    assert not is_race(timed(strategy, **rest))


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
