"""The fidelity benchmark: its measure of a step, its verdicts, and a quick run of the whole."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from pathlib import Path

import pytest

import tacit
from benchmarks.fidelity.causes import seconds_of, summed
from benchmarks.fidelity.cells import JUDGED, K_ASYNC, METHODS, OVERLAPPED, PLACES, Method
from benchmarks.fidelity.timing import step_s
from benchmarks.fidelity.verdicts import place_claims


def test_a_step_is_timed_over_whole_periods_from_the_start_of_the_first_that_counts():
    run = tacit.Run("", "", workers=2, steps=6, seed=0)
    for step in range(1, 7):
        run.trace.compute(0, step, 0.1 * step, 0.1 * step + 0.05)
        run.trace.compute(1, step, 0.3 * step, 0.3 * step + 0.05)
    assert step_s(run, Method(tacit.AllReduce(), skipped=1)) == pytest.approx(0.2)
    run.trace.compute(0, 1, 50.0, 50.1)  # a skipped step
    assert step_s(run, Method(tacit.AllReduce(), skipped=1)) == pytest.approx(0.2)


def test_a_step_of_a_server_strategy_is_an_update():
    run = tacit.Run("", "", workers=2, steps=4, seed=0)
    for update in range(1, 5):
        run.trace.note(-1, 0.25 * update, "update", update)
    assert step_s(run, METHODS[K_ASYNC]) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["AllReduce", OVERLAPPED, "SwarmSGD 8", K_ASYNC])
def test_the_parts_of_a_step_sum_to_its_time(name: str):
    cluster = tacit.Cluster(workers=3, compute=tacit.Constant(mean_s=0.01), costs={"flatten": 1e-4}, server="rank0")
    run = tacit.simulate(
        tacit.workloads.quadratic(dimension=50), METHODS[name].strategy, cluster=cluster, steps=45, timing_only=True
    )
    parts = summed(seconds_of(run, METHODS[name]))
    step = step_s(run, METHODS[name])
    assert sum(parts.values()) == pytest.approx(step)
    assert parts["compute"] > 0.003 and abs(parts["rest"]) < 0.01 * step


def test_there_are_63_cells_and_their_steps_are_whole_periods():
    assert len(PLACES) * len(JUDGED) == 63
    for place in PLACES:
        for name in JUDGED:
            method = METHODS[name]
            assert (place.steps(name) - 1 - method.skipped) % method.period == 0


def test_verdicts_follow_the_errors():
    places = [str(place) for place in PLACES]
    results = {place: {name: {"predicted_error": 0.01} for name in METHODS} for place in places}
    assert all(claim["holds"] for claim in place_claims(results))
    for name in JUDGED[:2]:
        results[places[0]][name] = {"predicted_error": -0.11}
    results[places[0]][K_ASYNC] = {"predicted_error": 0.5}
    claims = {claim["target"]: claim["holds"] for claim in place_claims(results)}
    assert claims == {"within 5%": True, "within 10%": False, "never calibrated": True, "K-async": True, "DDP": True}
    results[places[1]][K_ASYNC] = {"predicted_error": -0.21}
    assert {claim["target"]: claim["holds"] for claim in place_claims(results)}["K-async"] is False


def run_benchmark(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fidelity", *words])
    before = signal.getsignal(signal.SIGTERM)
    try:
        runpy.run_module("benchmarks.fidelity", run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.processes
def test_a_quick_run_measures_and_predicts_every_method(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path):
    monkeypatch.setattr(sys, "executable", str(python))
    out, again, runs = tmp_path / "out.json", tmp_path / "again.json", tmp_path / "runs"
    run_benchmark(monkeypatch, "--quick", "--only", "1", "--folder", str(runs), "--out", str(out))
    run_benchmark(monkeypatch, "--quick", "--only", "1", "--causes", "--predict-only", str(runs), "--out", str(again))
    written, repeated = (json.loads(path.read_text()) for path in (out, again))
    assert str(tmp_path) not in repeated["command"]
    [found], [same] = (one["parts"]["1"]["places"].values() for one in (written, repeated))
    assert set(found) == set(METHODS)
    for name, cell in found.items():
        assert (cell["measured_ms"] > 2 and cell["predicted_ms"] > 2) or name == K_ASYNC
        assert same[name]["measured_ms"] == cell["measured_ms"]
    assert "hook encode" in str(same["EF21 Top 1 %"]["causes"])
