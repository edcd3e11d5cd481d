"""``simulate(evaluate_every_s=…)``: evaluations at virtual times, which do not change the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tacit
from tacit import Run, workloads
from tacit.core.worker import Worker
from tests.strategy_table import TABLE, Row

TASK = workloads.quadratic(dimension=7, heterogeneity=0.5)
SECONDS = 0.037


def trained(strategy: tacit.Strategy[Any], **given: Any) -> Run:
    workers = given.pop("workers", 5)
    settings = {"cluster": tacit.Cluster(workers=workers), "steps": 29, "seed": 2, **given}
    return tacit.simulate(TASK, strategy, **settings)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_evaluations_at_times_change_neither_trace_nor_model(row: Row) -> None:
    plain, timed = trained(row.strategy), trained(row.strategy, evaluate_every_s=SECONDS)
    assert timed.trace.digest == plain.trace.digest
    torch.testing.assert_close(timed.parameters, plain.parameters, rtol=1e-12, atol=1e-14)
    assert timed.history[-1]["loss"] == pytest.approx(plain.history[-1]["loss"], rel=1e-12)
    last_s = timed.history[-1]["time_s"]
    expected = [0.0, *(count * SECONDS for count in range(1, round(last_s / SECONDS) + 1) if count * SECONDS < last_s)]
    assert [one["time_s"] for one in timed.history] == [*expected, last_s]
    assert all(one["loss"] is not None for one in timed.history)


def test_both_hosts_give_the_same_rows() -> None:
    for strategy in (tacit.SwarmSGD(local_steps=4), tacit.LocalSGD(period=tacit.Every(7)), tacit.KAsync(k=2)):
        digests = {trained(strategy, evaluate_every_s=SECONDS, host=host).digest for host in ("greenlet", "thread")}
        assert len(digests) == 1


@dataclass
class Watched:
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Alone(tacit.Strategy[Watched], tacit.RunsAhead):
    """Workers that never communicate, with many or no hook-free steps."""

    is_ahead: bool = True

    def init(self, worker: Worker) -> Watched:
        return Watched()

    def hook_free_steps(self, worker: Worker, state: Watched) -> int:
        return 7 - worker.step % 8 if self.is_ahead else 0

    def after_step(self, worker: Worker, state: Watched) -> None:
        state.steps += 1

    def finish(self, worker: Worker, state: Watched) -> None:
        worker.parameters.copy_(worker.network.all_reduce_mean(worker.parameters))


def test_the_model_is_that_of_the_steps_that_have_ended() -> None:
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1.0), speed={1: 0.25})
    task = workloads.quadratic(dimension=4, noise=0.0)
    for is_ahead in (True, False):
        run = tacit.simulate(
            task, Alone(is_ahead=is_ahead), cluster=cluster, steps=20, evaluate_every_s=2.5, engine="loop"
        )
        alone = tacit.simulate(
            task, tacit.AllReduce(), cluster=tacit.Cluster(workers=1), steps=20, evaluate_every=1, engine="loop"
        )
        # At 7.5 s the fast worker has taken 7 steps and the slow one 1; losses are quadratic along the path.
        row = run.history[3]
        assert (row["time_s"], row["step"]) == (7.5, 1)
        assert alone.history[7]["loss"] < row["loss"] < alone.history[1]["loss"]
        assert row["spread"] > 0
        steps = [one["step"] for one in run.history]
        assert steps == [int(one["time_s"] // 4) for one in run.history[:-1]] + [20]


def test_steps_computed_ahead_are_not_part_of_an_evaluation() -> None:
    both = [
        trained(Alone(is_ahead=is_ahead), evaluate_every_s=SECONDS, cluster=tacit.Cluster(workers=3))
        for is_ahead in (True, False)
    ]
    assert both[0].history == both[1].history


def test_a_server_reports_its_model() -> None:
    timed = trained(tacit.KAsync(k=2), evaluate_every_s=SECONDS)
    stepwise = trained(tacit.KAsync(k=2), evaluate_every=1)
    by_step = {row["step"]: row["loss"] for row in stepwise.history}
    assert all(row["loss"] == by_step[row["step"]] for row in timed.history)
    times_s = {row["step"]: row["time_s"] for row in stepwise.history}
    for row in timed.history[:-1]:
        assert times_s[row["step"]] <= row["time_s"] < times_s[row["step"] + 1]


def test_rows_at_times_show_what_not_waiting_gains() -> None:
    """A row at a step has the time of the slowest worker and the models that the others had long before."""
    cluster = tacit.Cluster(workers=8, compute=tacit.Constant(mean_s=0.02), speed={3: 0.2})
    given: dict[str, Any] = {"cluster": cluster, "steps": 60}
    at_steps = trained(tacit.SwarmSGD(local_steps=4), evaluate_every=5, **given)
    at_times = trained(tacit.SwarmSGD(local_steps=4), evaluate_every_s=0.05, **given)
    loss = at_steps.history[0]["loss"] / 4
    late, soon = at_steps.first_reaching(loss), at_times.first_reaching(loss)
    assert late is not None and soon is not None and soon["time_s"] < 0.5 * late["time_s"]


def test_the_run_ends_at_a_time_that_reaches_the_loss() -> None:
    for strategy in (tacit.SwarmSGD(local_steps=4), tacit.LocalSGD(period=tacit.Every(7)), tacit.KAsync(k=2)):
        whole = trained(strategy, evaluate_every_s=SECONDS)
        loss = whole.history[len(whole.history) // 2]["loss"]
        reached = whole.first_reaching(loss)
        part = trained(strategy, evaluate_every_s=SECONDS, until_loss=loss)
        assert reached is not None and part.record["target"]["time_s"] == reached["time_s"]
        assert part.record["target"]["time_s"] == part.history[-1]["time_s"] < whole.history[-1]["time_s"]
        again = trained(tacit.AllReduce(), start=part.parameters, steps=1)
        assert again.history[0]["loss"] == pytest.approx(reached["loss"], rel=1e-12)


def test_a_lost_worker_is_left_out_and_a_returned_one_is_included() -> None:
    faults = (tacit.Crash(rank=2, at_s=0.1, for_s=0.2),)
    cluster = tacit.Cluster(workers=4, faults=faults)
    given: dict[str, Any] = {"cluster": cluster, "steps": 40}
    timed = trained(tacit.SwarmSGD(local_steps=4), evaluate_every_s=SECONDS, **given)
    plain = trained(tacit.SwarmSGD(local_steps=4), **given)
    assert timed.trace.digest == plain.trace.digest
    torch.testing.assert_close(timed.parameters, plain.parameters, rtol=1e-12, atol=1e-14)
    assert all(row["loss"] is not None for row in timed.history)


def test_timing_only_runs_have_rows_at_times() -> None:
    for strategy in (tacit.LocalSGD(period=tacit.Every(5)), tacit.KAsync(k=2)):
        timed = trained(strategy, evaluate_every_s=SECONDS, timing_only=True)
        full = trained(strategy, evaluate_every_s=SECONDS)
        assert [(row["time_s"], row["step"]) for row in timed.history] == [
            (row["time_s"], row["step"]) for row in full.history
        ]
        assert all(row["loss"] is None for row in timed.history)


def test_a_deadlock_is_still_found() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Stuck(tacit.Strategy[None]):
        def after_step(self, worker: Worker, state: None) -> None:
            if worker.rank == 0 and worker.step == 3:
                worker.network.receive(tacit.TensorMessage)

    with pytest.raises(tacit.Deadlock) as plain:
        trained(Stuck())
    with pytest.raises(tacit.Deadlock) as timed:
        trained(Stuck(), evaluate_every_s=SECONDS)
    assert str(timed.value) == str(plain.value)


def test_the_settings_repeat_the_run() -> None:
    run = trained(tacit.AllReduce(), evaluate_every_s=0.5)
    assert run.config["evaluate_every_s"] == 0.5 and "evaluate_every" not in run.config


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"evaluate_every_s=0 must be a number of seconds above 0"):
        trained(tacit.AllReduce(), evaluate_every_s=0)
    with pytest.raises(ValueError, match=r"evaluate_every=5 and evaluate_every_s=0\.5 cannot be combined"):
        trained(tacit.AllReduce(), evaluate_every=5, evaluate_every_s=0.5)
