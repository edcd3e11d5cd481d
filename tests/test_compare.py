"""The comparison: paired, honest about learning rates, and undeterred by a run that fails."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit import AllReduce, Cluster, Constant, Crash, Every, LocalSGD, Run, SwarmSGD, workloads
from tacit.compare import runners
from tacit.compare.findings import Findings, count_runs
from tacit.compare.rates import RateResult, RateResults
from tacit.compare.tasks import Task
from tacit.compare.tuning import FACTORS, FURTHER, Candidate, Tuning, next_rates
from tacit.compare.watcher import Watcher
from tacit.compare.workloads import compare
from tacit.report import Comparison

QUADRATIC = workloads.quadratic(dimension=5, condition=5.0)
CLUSTER = Cluster(workers=2, compute=Constant(mean_s=0.01))
LOCAL = LocalSGD(period=Every(4))


def compared(findings: Findings) -> Comparison:
    assert findings.comparison is not None
    return findings.comparison


class Journal(Watcher):
    """Remembers the runs, and can press Ctrl-C when so many are over."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.runs: list[tuple[Run, bool]] = []
        self.interrupt_after = interrupt_after

    def step(self, task: Task, step: int, steps: int, time_s: float, loss: float | None) -> None:
        if len(self.runs) == self.interrupt_after and step > steps / 2:
            raise KeyboardInterrupt

    def end(self, task: Task, run: Run) -> None:
        self.runs.append((run, task.is_tuning))


def test_every_strategy_runs_with_every_seed() -> None:
    journal = Journal()
    found = compared(compare(QUADRATIC, [AllReduce(), LOCAL], cluster=CLUSTER, steps=12, seeds=(4, 7), watcher=journal))
    assert [(e.label, [run.seed for run in e.runs]) for e in found.entries] == [
        ("AllReduce()", [4, 7]),
        (str(LOCAL), [4, 7]),
    ]
    assert found.baseline == "AllReduce()"
    assert len(journal.runs) == count_runs(strategies=2, seeds=2, tune=False)


def test_a_plan_that_one_strategy_cannot_take_is_refused_before_the_first_run() -> None:
    journal, back = Journal(), Cluster(workers=3, faults=[Crash(rank=1, at_s=0.05, for_s=0.05)])
    with pytest.raises(ValueError, match=r"AllReduce\(\) admits no workers during the run.*remove for_s=0.05"):
        compare(QUADRATIC, [SwarmSGD(), AllReduce()], cluster=back, steps=12, watcher=journal)
    assert not journal.runs


def test_equal_seeds_mean_equal_batches() -> None:
    """Averaging one worker with itself changes nothing, so whatever differed would be the batches."""
    alone = Cluster(workers=1, compute=Constant(mean_s=0.01))
    found = compared(compare(QUADRATIC, [AllReduce(), LOCAL], cluster=alone, steps=12, seeds=(3,)))
    left, right = (entry.runs[0].history for entry in found.entries)
    assert [row["loss"] for row in left] == pytest.approx([row["loss"] for row in right])


@pytest.mark.slow
def test_tuning_gives_everybody_the_same_number_of_runs_on_a_seed_of_its_own() -> None:
    journal = Journal()
    strategies = [AllReduce(), LOCAL]
    findings = compare(QUADRATIC, strategies, cluster=CLUSTER, steps=12, seeds=(0, 5), tune=True, watcher=journal)
    tried = {s: [run.seed for run, tuning in journal.runs if tuning and run.strategy == str(s)] for s in strategies}
    assert tried == {s: [6] * (len(FACTORS) + FURTHER) for s in strategies}
    for strategy in strategies:
        tuning = findings.tunings[str(strategy)]
        assert tuning.best is not None
        assert {run.config["lr"] for run, t in journal.runs if not t and run.strategy == str(strategy)} == {
            tuning.best.lr
        }
        assert tuning.best.loss == min(c.loss for c in tuning.candidates if c.loss is not None)
    assert [entry.note for entry in compared(findings).entries] == [t.note for t in findings.tunings.values()]


@pytest.mark.slow
def test_a_rate_that_diverges_is_a_lost_candidate() -> None:
    findings = compare(QUADRATIC, [AllReduce()], cluster=CLUSTER, steps=400, lr=8.0, tune=True, evaluate_every=100)
    tuning = findings.tunings["AllReduce()"]
    assert [c.lr for c in tuning.candidates if c.loss is None][-1] == 32.0
    assert "32 → failed" in str(tuning)
    assert [run.status for run in compared(findings).entries[0].runs] == ["finished"]


def searched(loss: Callable[[float], float | None]) -> list[Candidate]:
    """Return all candidates of a search around 1, with the losses of a function."""
    candidates: list[Candidate] = []
    while rates := next_rates(1.0, candidates):
        candidates += [Candidate(lr, loss(lr)) for lr in rates]
    return candidates


def test_a_search_goes_beyond_its_edge_and_between_its_best() -> None:
    falling = searched(lambda lr: 1 / lr)
    assert [c.lr for c in falling] == [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    assert Tuning(0, tuple(falling)).is_at_edge
    valley = searched(lambda lr: abs(math.log(lr) - 0.1))
    assert [c.lr for c in valley][6:] == pytest.approx([2**0.5, 2**0.25])
    lost = searched(lambda lr: None)
    assert [c.lr for c in lost][6:] == [1 / 16, 1 / 32]
    assert Tuning(9, tuple(lost)).note == "lr not tuned: all 8 runs on seed 9 failed"


def test_a_failed_run_keeps_its_history_and_the_others_go_on() -> None:
    found = compared(compare(QUADRATIC, [AllReduce(), LOCAL], cluster=CLUSTER, steps=400, seeds=(0, 1), lr=50.0))
    for entry in found.entries:
        for run in entry.runs:
            assert run.status.startswith("failed: the loss of worker")
            assert len(run.history) > 1
    crashing = Cluster(workers=2, compute=Constant(mean_s=0.01), faults=[Crash(rank=1, at_s=0.05)])
    found = compared(compare(QUADRATIC, [LOCAL], cluster=crashing, steps=40))
    assert "worker 1 was lost at 0.05 s" in found.entries[0].runs[0].status


def test_an_interruption_keeps_what_there_is() -> None:
    journal = Journal(interrupt_after=1)
    findings = compare(QUADRATIC, [AllReduce(), LOCAL], cluster=CLUSTER, steps=40, seeds=(0, 1), watcher=journal)
    assert findings.interrupted
    assert [run.status for e in compared(findings).entries for run in e.runs] == ["finished", "interrupted"]
    assert findings.as_json()["interrupted"] is True


def test_an_interruption_while_tuning_leaves_no_comparison() -> None:
    findings = compare(QUADRATIC, [AllReduce()], cluster=CLUSTER, steps=40, tune=True, watcher=Journal(0))
    assert findings == Findings(None, {}, interrupted=True)
    assert findings.as_json() == {"tuning": {}, "interrupted": True}


def test_the_best_of_several_learning_rates_is_compared_and_all_are_there() -> None:
    findings = compare(QUADRATIC, [LOCAL, AllReduce()], cluster=CLUSTER, steps=60, seeds=(0, 1), lr=[0.001, 0.1, 1e30])
    best, every = compared(findings), findings.all_rates
    assert every is not None
    assert [(entry.label, entry.note) for entry in best.entries] == [
        (str(LOCAL), "lr=0.1, best of 3 by final loss"),
        ("AllReduce()", "lr=0.1, best of 3 by final loss"),
    ]
    assert [entry.label for entry in every.entries][:3] == [f"{LOCAL}, lr={lr}" for lr in (0.001, 0.1, 1e30)]
    assert every.baseline == "AllReduce(), lr=0.1" and best.baseline == "AllReduce()"
    assert [run.seed for run in every.entries[1].runs] == [0, 1]
    assert every.entries[1].runs == best.entries[0].runs
    results = findings.rates["AllReduce()"]
    small, good, failed = results.results
    assert small.mean is not None and good.mean is not None and small.mean > good.mean
    assert failed.losses == (None, None)
    assert (
        str(results)
        == f"mean final loss by lr: 0.001 → {small.mean:.4g}, 0.1 → {good.mean:.4g}, 1e+30 → 0 of 2 finished"
    )
    described = findings.as_json()["rates"]["AllReduce()"]
    assert described["best"] == 0.1
    assert [row["per_seed"] for row in described["rates"]] == [list(one.losses) for one in results.results]


def test_a_rate_with_a_failed_seed_is_not_the_best() -> None:
    results = RateResults((RateResult(0.3, (0.1, None)), RateResult(0.1, (0.5, 0.6)), RateResult(0.2, (0.6, 0.6))))
    assert results.best.lr == 0.1
    assert "0.3 → 1 of 2 finished" in str(results)


def test_jobs_follow_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(runners, "QUOTA", limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert runners.usable_cores() == 8
    limit.write_text("max 100000\n")
    assert runners.usable_cores() == 8
    limit.write_text("350000 100000\n")
    assert runners.usable_cores() == 3
    limit.write_text("50000 100000\n")
    assert runners.usable_cores() == 1
    limit.unlink()
    assert (runners.default_jobs(1, "cpu"), runners.default_jobs(3, "cpu"), runners.default_jobs(16, "cpu")) == (
        8,
        2,
        1,
    )
    assert runners.default_jobs(1, "cuda:1") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategies": []}, r"strategies=\[\] is empty"),
        ({"strategies": [AllReduce(), AllReduce()]}, r"contains AllReduce\(\) twice"),
        ({"seeds": ()}, r"seeds=\[\] is empty"),
        ({"seeds": (1, 1)}, r"seeds=\[1, 1\] repeat"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"strategies": [AllReduce()], **arguments}
    with pytest.raises(ValueError, match=message):
        compare(QUADRATIC, cluster=CLUSTER, **given)  # type: ignore[arg-type]
