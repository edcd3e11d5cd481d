"""``simulate(until_loss=…)``: the run ends at the first evaluation whose loss is small enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tacit
from tacit import Run, workloads

TASK = workloads.quadratic(dimension=6)
CLUSTER = tacit.Cluster(workers=4, bandwidth_bytes_per_s=1e5)
STRATEGIES = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(6)),
    tacit.LocalSGD(period=tacit.Every(6), outer=tacit.OuterSGD(lr=0.7, momentum=0.5)),
    tacit.SwarmSGD(local_steps=4),
    tacit.AsynchronousDPSGD(),
    tacit.KAsync(k=2),
    tacit.KBatchAsync(k=2),
]


def trained(strategy: tacit.Strategy[Any], **given: Any) -> Run:
    settings = {"cluster": CLUSTER, "steps": 36, "evaluate_every": 4, "lr": 0.05, "seed": 1, **given}
    return tacit.simulate(TASK, strategy, **settings)


def target_of(whole: Run) -> float:
    """Return a loss that the run reaches in the middle of its history."""
    return float(min(row["loss"] for row in whole.history[: len(whole.history) // 3]))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_the_run_is_the_beginning_of_the_whole_run(strategy: tacit.Strategy[Any]) -> None:
    """With greenlets as hosts of one run, and threads of the other."""
    whole = trained(strategy)
    loss = target_of(whole)
    expected = whole.first_reaching(loss)
    assert expected is not None and 0 < expected["step"] < 36
    part = trained(strategy, until_loss=loss, host="thread")
    assert part.status == "finished"
    count = whole.history.index(expected) + 1
    *before, last = part.history
    assert before == whole.history[: count - 1]
    others = ("worst_loss", "worst_metric")  # the end of a run also has the worst model
    assert {**last, **dict.fromkeys(others)} == {**expected, **dict.fromkeys(others)}
    facts = {"loss": loss, "is_reached": True, "best_loss": expected["loss"]}
    assert part.record["target"] == {**facts, "step": expected["step"], "time_s": expected["time_s"]}
    assert part.summary()["target"] == part.record["target"]
    assert part.summary()["time_s"] <= expected["time_s"]
    ended = part.trace.of("compute")
    assert ended == [event for event in whole.trace.of("compute") if event.time_s <= expected["time_s"]]


def test_the_model_is_the_evaluated_one() -> None:
    for strategy in (tacit.LocalSGD(period=tacit.Every(6)), tacit.SwarmSGD(local_steps=4), tacit.KAsync(k=2)):
        part = trained(strategy, until_loss=target_of(trained(strategy)))
        again = trained(tacit.AllReduce(), start=part.parameters, steps=1)
        assert again.history[0]["loss"] == pytest.approx(part.history[-1]["loss"], rel=1e-12)


def test_a_loss_that_is_never_reached_leaves_the_run_as_it_is() -> None:
    whole, tried = trained(tacit.AllReduce()), trained(tacit.AllReduce(), until_loss=-1.0)
    assert tried.digest == whole.digest and tried.status == "finished"
    best = min(whole.history, key=lambda row: row["loss"])
    facts = {"loss": -1.0, "is_reached": False, "best_loss": best["loss"]}
    assert tried.record["target"] == {**facts, "step": best["step"], "time_s": best["time_s"]}
    assert "target" not in whole.record and "target" not in whole.summary()


def test_an_initial_model_that_is_good_enough_takes_no_step() -> None:
    for strategy in (tacit.AllReduce(), tacit.KAsync(k=1)):
        run = trained(strategy, until_loss=1e9)
        assert run.record["target"]["step"] == 0 and run.summary()["steps"] == 0 and len(run.history) == 1
        torch.testing.assert_close(run.parameters, trained(strategy, steps=1, lr=1e-30).parameters)


def test_the_last_evaluation_counts() -> None:
    whole = trained(tacit.LocalSGD(period=tacit.Every(50)), evaluate_every=1000)
    loss = whole.history[-1]["loss"]
    run = trained(tacit.LocalSGD(period=tacit.Every(50)), evaluate_every=1000, until_loss=loss)
    assert run.digest == whole.digest and run.record["target"]["step"] == 36


def test_a_crash_ends_no_run_that_had_reached_its_target() -> None:
    strategy = tacit.LocalSGD(period=tacit.Every(6))
    whole = trained(strategy)
    reached = whole.first_reaching(target_of(whole))
    assert reached is not None
    crash = tacit.Crash(rank=1, at_s=reached["time_s"] + 1e-6)
    cluster = tacit.Cluster(workers=4, bandwidth_bytes_per_s=1e5, faults=(crash,))
    run = trained(strategy, cluster=cluster, until_loss=target_of(whole))
    assert run.status == "finished" and run.history[-1]["step"] == reached["step"]


def test_a_worker_that_is_lost_is_not_waited_for() -> None:
    cluster = tacit.Cluster(workers=4, faults=(tacit.Crash(rank=1, at_s=0.3),))
    whole = trained(tacit.SwarmSGD(local_steps=4), cluster=cluster)
    run = trained(tacit.SwarmSGD(local_steps=4), cluster=cluster, until_loss=target_of(whole))
    assert run.record["target"]["is_reached"] and run.history[-1]["step"] < 36


def test_the_worst_model_is_that_of_the_end() -> None:
    strategy = tacit.DPSGD()
    part = trained(strategy, until_loss=target_of(trained(strategy)))
    assert part.history[-1]["worst_loss"] >= part.history[-1]["loss"]
    assert all("worst_loss" not in row for row in part.history[:-1])


def test_the_settings_repeat_the_run() -> None:
    run = trained(tacit.AllReduce(), until_loss=0.5)
    assert run.config["until_loss"] == 0.5 and "until_loss = 0.5" in run.toml()
    assert "until_loss" not in trained(tacit.AllReduce(), steps=2).config


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"until_loss=0\.3 needs the loss, and timing_only=True computes no"):
        trained(tacit.AllReduce(), until_loss=0.3, timing_only=True)
    with pytest.raises(ValueError, match="until_loss=nan must be a finite number"):
        trained(tacit.AllReduce(), until_loss=float("nan"))
    with pytest.raises(ValueError, match=r"until_loss=0\.3 cannot be used with replay"):
        tacit.simulate(TASK, tacit.AllReduce(), until_loss=0.3, replay=trained(tacit.AllReduce(), steps=2))
