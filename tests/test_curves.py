"""The cache of loss curves: keys without the network, answers that do not depend on what is known, times of a loss."""

from __future__ import annotations

import doctest
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.compare import Curve, LossCurves, time_to_loss
from tests.strategy_table import TABLE

TASK = workloads.quadratic(dimension=6)
LOCAL = tacit.LocalSGD(period=tacit.Every(6))


def curve_of(curves: LossCurves, strategy: tacit.Strategy[Any] = LOCAL, **given: Any) -> Curve:
    settings = {"workers": 4, "steps": 30, "lr": 0.05, "evaluate_every": 3, **given}
    return curves.curve(settings.pop("workload", TASK), strategy, **settings)


def simulated(strategy: tacit.Strategy[Any] = LOCAL, **given: Any) -> tacit.Run:
    cluster = tacit.Cluster(workers=4, speed={1: 0.4}, bandwidth_bytes_per_s=3e4)
    return tacit.simulate(TASK, strategy, **{"cluster": cluster, "steps": 30, "lr": 0.05, "evaluate_every": 3, **given})


def test_a_curve_has_the_losses_of_a_run_on_another_cluster() -> None:
    curve, run = curve_of(LossCurves()), simulated()
    assert curve.status == "finished" and curve.steps == tuple(range(0, 31, 3))
    assert curve.loss == pytest.approx([row["loss"] for row in run.history], rel=1e-12)
    assert curve.metric == tuple(row["metric"] for row in run.history)


def test_an_equal_request_is_simulated_once() -> None:
    curves = LossCurves()
    first = curve_of(curves)
    again = curve_of(curves, tacit.LocalSGD(period=tacit.Every(6)), lr=np.float64(0.05))
    assert first == again and curves.simulated == 1
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"lr": 0.06},
        {"workers": 3},
        {"momentum": 0.5},
        {"weight_decay": 0.1},
        {"optimizer": "adam"},
        {"schedule": tacit.StepDecay()},
        {"evaluate_every": 4},
        {"strategy": tacit.AllReduce()},
        {"workload": workloads.quadratic(dimension=5)},
    ]
    found = [curve_of(curves, **other) for other in others]
    assert curves.simulated == 1 + len(others) and len({first, *found}) == 1 + len(others)


def test_a_longer_curve_answers_a_shorter_request_as_a_new_simulation_would() -> None:
    for strategy in (LOCAL, tacit.LocalSGD(period=tacit.Every(13), outer=tacit.OuterSGD(lr=0.7))):
        curves = LossCurves()
        curve_of(curves, strategy)
        for steps in (21, 20, 2):
            assert curve_of(curves, strategy, steps=steps) == curve_of(LossCurves(), strategy, steps=steps)
        assert curves.simulated == 1
        curve_of(curves, strategy, steps=31)
        assert curves.simulated == 2


def test_lengths_that_make_a_difference_are_simulated_apart() -> None:
    given: list[dict[str, Any]] = [
        {"strategy": tacit.LocalSGD(period=tacit.LinearPeriod(initial=2, rounds=5))},
        {"strategy": tacit.LocalSGD(period=tacit.VariancePeriod(initial=2))},
        {"schedule": tacit.Cosine()},
    ]
    for one in given:
        curves = LossCurves()
        curve_of(curves, **one)
        shorter = curve_of(curves, steps=20, **one)
        assert curves.simulated == 2 and shorter == curve_of(LossCurves(), steps=20, **one)
        run = simulated(one.get("strategy", LOCAL), steps=20, schedule=one.get("schedule"))
        assert shorter.loss == pytest.approx([row["loss"] for row in run.history], rel=1e-9)
    curves = LossCurves()
    curve_of(curves, schedule=tacit.InverseTime(offset=20.0))
    curve_of(curves, schedule=tacit.InverseTime(offset=20.0), steps=20)
    assert curves.simulated == 1


def test_a_curve_that_has_reached_the_loss_answers() -> None:
    whole = curve_of(LossCurves())
    curves = LossCurves()
    loss = whole.loss[6]
    assert loss is not None
    part = curve_of(curves, until_loss=loss)
    step = whole.first_step_reaching(loss)
    assert part.steps[-1] == step == part.first_step_reaching(loss) and part.loss == whole.loss[: len(part.loss)]
    assert curve_of(curves, until_loss=loss, steps=10_000) == part
    higher = whole.loss[3]
    assert higher is not None and curve_of(curves, until_loss=higher).steps[-1] == whole.first_step_reaching(higher)
    assert curve_of(curves, steps=10).steps == (0, 3, 6, 9)
    assert curves.simulated == 1
    assert curve_of(curves) == whole and curves.simulated == 2  # the run that ended early does not reach this far
    assert whole.first_step_reaching(-1.0) is None
    assert curve_of(curves, until_loss=-1.0) == whole and curves.simulated == 2


def test_a_failed_run_is_an_answer() -> None:
    curves = LossCurves()
    failed = curve_of(curves, lr=1e6, steps=100)
    assert failed.status.startswith("failed: ") and failed.steps[-1] < 100
    assert curve_of(curves, lr=1e6, steps=200) == failed and curves.simulated == 1
    short = curve_of(curves, lr=1e6, steps=failed.steps[-1])
    assert short.status == "finished" and curves.simulated == 1


def test_a_folder_serves_other_processes(tmp_path: Path) -> None:
    folder = tmp_path / "curves"
    first, second = LossCurves(folder), LossCurves(folder)
    made = curve_of(first)
    assert curve_of(second) == made and curve_of(second, steps=20) == curve_of(LossCurves(), steps=20)
    assert second.simulated == 0
    [path] = folder.iterdir()
    content = json.loads(path.read_text())
    assert content["settings"]["strategy"] == "LocalSGD(period=Every(6))" and path.stat().st_size < 4000
    assert content["settings"]["tacit"] and content["settings"]["torch"] == torch.__version__
    path.write_text("{")  # not written by tacit
    third = LossCurves(folder)
    assert curve_of(third) == made and third.simulated == 1
    assert json.loads(path.read_text()) == content


def test_objects_without_a_text_are_kept_in_memory_by_identity(tmp_path: Path) -> None:
    def own() -> tacit.Workload:
        inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        model = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(model.weight)
        return workloads.custom(model, torch.nn.functional.mse_loss, data=(inputs, inputs[:, :1]), batch_size=4)

    curves, task, other = LossCurves(tmp_path), own(), own()
    curve_of(curves, workload=task)
    curve_of(curves, workload=task)
    assert curves.simulated == 1
    curve_of(curves, workload=other)
    assert curves.simulated == 2

    def falling(step: int) -> float:
        return 1 / (1 + step)

    curve_of(curves, schedule=falling)
    curve_of(curves, schedule=falling)
    assert curves.simulated == 3
    curve_of(curves, schedule=lambda step: 1 / (1 + step))
    assert curves.simulated == 4
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True, kw_only=True)
class Mine(tacit.AllReduce):
    """A strategy of the user's own module, whose code may change between processes."""


def test_strategies_of_other_modules_are_kept_in_memory_only(tmp_path: Path) -> None:
    curves = LossCurves(tmp_path)
    curve_of(curves, Mine())
    curve_of(curves, Mine())
    assert curves.simulated == 1 and list(tmp_path.iterdir()) == []


def test_strategies_that_depend_on_time_have_no_curve() -> None:
    for strategy in (tacit.KAsync(k=2), tacit.SwarmSGD(local_steps=4), tacit.PullSwarm(), tacit.AsynchronousDPSGD()):
        assert strategy.depends_on_time and not LossCurves.is_network_free(strategy)
        with pytest.raises(ValueError, match="has no loss curve of its own"):
            curve_of(LossCurves(), strategy)
    network_free = (tacit.SwarmSGD(blocking=True), tacit.DPSGD(), tacit.LocalSGD(overlap_steps=3), tacit.AllReduce())
    assert all(map(LossCurves.is_network_free, network_free))


def test_strategies_that_say_so_do_depend_on_time() -> None:
    """The claim is not empty: on another cluster the models by step of these strategies are others."""
    paced = tacit.LocalSGD(period=tacit.PacePeriod(communication=0.02))
    for strategy in (tacit.KAsync(k=2), tacit.SwarmSGD(local_steps=4), tacit.AsynchronousDPSGD(), paced):
        name = "spread" if strategy is paced else "loss"  # on a quadratic, the mean does not depend on rounds
        here = [row[name] or 0.0 for row in simulated(strategy).history]
        there = [row[name] or 0.0 for row in simulated(strategy, cluster=tacit.Cluster(workers=4)).history]
        assert here[0] == there[0] and max(abs(a - b) for a, b in zip(here, there, strict=True)) > 1e-6


def test_asynchronous_strategies_depend_on_time() -> None:
    assert all(row.strategy.depends_on_time for row in TABLE if row.is_asynchronous)


def test_a_period_that_reads_time_makes_the_strategy_depend_on_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Within(tacit.Strategy[None]):
        inner: tacit.Strategy[Any]

    assert tacit.LocalSGD(period=tacit.PacePeriod()).depends_on_time
    assert Within(inner=tacit.KAsync(k=1)).depends_on_time and not Within(inner=tacit.AllReduce()).depends_on_time


@pytest.mark.parametrize(
    "strategy",
    [tacit.AllReduce(), LOCAL, tacit.LocalSGD(period=tacit.Every(7), overlap_steps=3), tacit.DPSGD()],
    ids=str,
)
def test_the_time_to_a_loss_is_that_of_the_run_itself(strategy: tacit.Strategy[Any]) -> None:
    curve, times, run = curve_of(LossCurves(), strategy), simulated(strategy, timing_only=True), simulated(strategy)
    for row in run.history[:-1]:
        assert time_to_loss(curve, times, row["loss"] * (1 + 1e-9)) == pytest.approx(
            run.first_reaching(row["loss"] * (1 + 1e-9))["time_s"],
            rel=1e-12,  # type: ignore[index]
        )
    assert time_to_loss(curve, times, -1.0) is None


def test_the_example_of_the_class_is_true() -> None:
    [example] = doctest.DocTestFinder(recurse=False).find(LossCurves, "LossCurves", globs={})
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_times_of_another_strategy_are_refused() -> None:
    curve, times = curve_of(LossCurves()), simulated(tacit.AllReduce(), timing_only=True)
    with pytest.raises(ValueError, match=r"timing_run is of AllReduce\(\) with 4 workers, and the curve of LocalSGD"):
        time_to_loss(curve, times, 1.0)
    short = simulated(timing_only=True, steps=3)
    with pytest.raises(ValueError, match="timing_run has steps=3, and the curve reaches loss=.* simulate at least"):
        time_to_loss(curve, short, min(loss for loss in curve.loss if loss is not None))
