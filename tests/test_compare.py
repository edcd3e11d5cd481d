"""The comparison: paired, honest about learning rates, and undeterred by a run that fails."""

from __future__ import annotations

import math

import pytest

from tacit import AllReduce, Cluster, Constant, Crash, Every, LocalSGD, Run, SwarmSGD, workloads
from tacit.compare.workloads import (
    FACTORS,
    FURTHER,
    Candidate,
    Findings,
    Tuning,
    Watcher,
    compare,
    count_runs,
    learning_rates,
)
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

    def step(self, step: int, steps: int, time_s: float, loss: float | None) -> None:
        if len(self.runs) == self.interrupt_after and step > steps / 2:
            raise KeyboardInterrupt

    def end(self, run: Run, tuning: bool) -> None:
        self.runs.append((run, tuning))


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


def test_a_search_goes_beyond_its_edge_and_between_its_best() -> None:
    falling: list[Candidate] = []
    for lr in learning_rates(1.0, falling):
        falling.append(Candidate(lr, 1 / lr))
    assert [c.lr for c in falling] == [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    assert Tuning(0, tuple(falling)).is_at_edge
    valley: list[Candidate] = []
    for lr in learning_rates(1.0, valley):
        valley.append(Candidate(lr, abs(math.log(lr) - 0.1)))
    assert [c.lr for c in valley][6:] == pytest.approx([2**0.5, 2**0.25])
    lost: list[Candidate] = []
    for lr in learning_rates(1.0, lost):
        lost.append(Candidate(lr, None))
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
