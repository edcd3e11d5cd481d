"""A comparison in several processes: equal results, and one run's end is not that of the others.

The first comparison of a test process starts the fork server, which takes seconds; the others share it.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tacit import AllReduce, Cluster, Constant, Every, KAsync, LocalSGD, Run, Strategy, compare, workloads
from tacit.compare import Findings
from tacit.compare.tasks import Task
from tacit.compare.watcher import Watcher
from tests.compare_parts import Faulty, Killed

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fork_server")]

QUADRATIC = workloads.quadratic(dimension=5, condition=5.0)
CLUSTER = Cluster(workers=2, compute=Constant(mean_s=0.01))
LOCAL = LocalSGD(period=Every(4))


def compared(strategies: list[Strategy], **settings: Any) -> Findings:
    return compare(QUADRATIC, strategies, **{"cluster": CLUSTER, "steps": 12, **settings})


def digests(findings: Findings) -> dict[str, list[str]]:
    assert findings.comparison is not None
    every = findings.all_rates or findings.comparison
    return {entry.label: [run.digest for run in entry.runs] for entry in every.entries}


@pytest.mark.parametrize(
    "settings",
    [{"seeds": (3, 1)}, {"seeds": (0,), "tune": True}, {"seeds": (0, 1), "lr": (0.3, 0.1)}],
    ids=["seeds", "tune", "rates"],
)
def test_results_do_not_depend_on_the_number_of_processes(settings: dict[str, Any]) -> None:
    strategies = [LOCAL, AllReduce(), KAsync(k=2)]
    one, two = (compared(strategies, jobs=jobs, **settings) for jobs in (1, 2))
    assert digests(one) == digests(two)
    assert one.as_json() == two.as_json()


def test_the_number_of_threads_is_that_of_the_comparison_in_every_process() -> None:
    torch.set_num_threads(2)
    try:
        findings = [compared([AllReduce(), LOCAL], jobs=jobs) for jobs in (1, 2)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    runs = [run for f in findings if f.comparison for entry in f.comparison.entries for run in entry.runs]
    assert {(run.config["threads"], run.record["threads"]) for run in runs} == {(1, 1)}


def test_a_killed_process_loses_its_own_run_only() -> None:
    findings = compared([AllReduce(), Killed(), LOCAL], seeds=(0, 1), jobs=2)
    assert findings.comparison is not None
    found = {entry.label: [run.status for run in entry.runs] for entry in findings.comparison.entries}
    assert found["AllReduce()"] == found[str(LOCAL)] == ["finished", "finished"]
    for status in found[str(Killed())]:
        assert status.startswith("failed: its process was killed (SIGKILL), maybe for lack of memory; use fewer jobs")
    lost = findings.comparison.rows[1]
    assert lost.time_s.values == lost.bytes_sent.values == lost.rounds.values == lost.loss.values == (None, None)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_one_run_does_not_end_the_others(jobs: int) -> None:
    findings = compared([Faulty(), AllReduce()], jobs=jobs)
    assert findings.comparison is not None
    assert [run.status for entry in findings.comparison.entries for run in entry.runs] == [
        "failed: ZeroDivisionError: a defect in the strategy",
        "finished",
    ]
    assert "failed" in findings.comparison.rows[0].statuses[0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_all_runs_is_raised(jobs: int) -> None:
    with pytest.raises(ZeroDivisionError, match="a defect in the strategy"):
        compared([Faulty()], seeds=(0, 1), jobs=jobs)
    with pytest.raises(ValueError, match="optimizer='sdg'"):
        compared([AllReduce(), LOCAL], optimizer="sdg", jobs=jobs)


class Interrupting(Watcher):
    """Presses Ctrl-C when a run has done half of its steps."""

    def __init__(self) -> None:
        self.ended: list[Run] = []

    def step(self, task: Task, step: int, steps: int, time_s: float, loss: float | None) -> None:
        if task.seed == 1 and step > steps / 2:
            raise KeyboardInterrupt

    def end(self, task: Task, run: Run) -> None:
        self.ended.append(run)


def test_ctrl_c_keeps_finished_runs_and_what_there_is_of_the_others() -> None:
    watcher = Interrupting()
    long = {"steps": 300, "evaluate_every": 5}
    findings = compared([AllReduce(), LOCAL], seeds=(0, 1), jobs=2, watcher=watcher, **long)
    assert findings.interrupted and findings.comparison is not None
    runs = [run for entry in findings.comparison.entries for run in entry.runs]
    assert {run.status for run in runs} == {"finished", "interrupted"}
    assert [run.status for run in runs if run.seed == 0].count("finished") >= 1  # else seed 1 would not have begun
    assert all(1 <= len(run.history) < 61 for run in runs if run.status == "interrupted")  # 1: it had just begun
    again = compared([AllReduce(), LOCAL], seeds=(0, 1), jobs=2, earlier=watcher.ended, **long)
    assert digests(again) == digests(compared([AllReduce(), LOCAL], seeds=(0, 1), **long))


def test_work_that_cannot_be_sent_is_done_in_this_process() -> None:
    data = torch.eye(8), torch.ones(8, 1)
    own = workloads.custom(torch.nn.Linear(8, 1), lambda left, right: mse_loss(left, right), data=data)
    findings = [compare(own, [AllReduce(), LOCAL], cluster=CLUSTER, steps=5, jobs=jobs) for jobs in (1, 2)]
    assert digests(findings[0]) == digests(findings[1])
    [note] = findings[1].notes
    assert "made one after the other, because other processes cannot receive them" in note and "pickle" in note
    sent = workloads.custom(torch.nn.Linear(8, 1), mse_loss, data=data)
    assert not compare(sent, [AllReduce(), LOCAL], cluster=CLUSTER, steps=5, jobs=2).notes


def test_a_strategy_that_cannot_be_sent_repeats_no_run() -> None:
    class Inner(LocalSGD):
        pass

    watcher = Interrupting()
    findings = compared([AllReduce(), LOCAL, Inner()], jobs=2, watcher=watcher)
    assert len(findings.notes) == 1 and sorted(run.strategy for run in watcher.ended) == sorted(digests(findings))


def test_runs_come_back_with_their_model_and_warnings() -> None:
    unequal = Cluster(workers=2, compute=Constant(mean_s=0.01), speed={1: 0.5})
    workload = workloads.digits(split="sorted")
    with pytest.warns(match="uses fast learners more often"):
        findings = compare(workload, [KAsync(k=1), AllReduce()], cluster=unequal, steps=3, jobs=2)
    assert findings.comparison is not None
    run = findings.comparison.entries[0].runs[0]
    assert torch.equal(torch.nn.utils.parameters_to_vector(run.model().parameters()), run.parameters)


def test_an_executor_of_the_user_makes_the_runs() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        found = compared([AllReduce(), LOCAL], executor=pool)
        assert digests(found) == digests(compared([AllReduce(), LOCAL]))
        killed = compared([AllReduce(), Killed()], executor=pool, jobs=1)
    assert killed.comparison is not None
    assert "the executor lost it: BrokenProcessPool" in killed.comparison.entries[1].runs[0].status


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"jobs": 0}, ValueError, "jobs=0 must be at least 1"),
        ({"executor": "slurm"}, ValueError, r"executor='slurm' must be 'local', 'ray' \(RAY_ADDRESS names"),
        ({"executor": 3}, TypeError, "executor=3 must be"),
        ({"executor": ThreadPoolExecutor(1)}, TypeError, "must use processes"),
        ({"lr": ()}, ValueError, r"lr=\[\] is empty"),
        ({"lr": (0.1, 0.1)}, ValueError, r"lr=\[0.1, 0.1\] repeat"),
        ({"lr": (0.1, 0.2), "tune": True}, ValueError, "tune=True searches around one rate"),
        ({"threads": 0}, ValueError, "threads=0 must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compared([AllReduce()], **settings)
