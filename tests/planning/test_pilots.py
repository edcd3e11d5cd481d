"""Pilots: finalists, ratios, what they change in a plan, and one whole pilot on real processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tacit
from tacit.planning.pace import Pace
from tacit.planning.pilots.finalists import MARGIN, corrected, finalists_of, piloted, ratio_of
from tacit.planning.pilots.job import PilotFailed, PilotJob
from tacit.planning.plan import Row
from tacit.planning.results import Interval
from tacit.planning.verdict import Objective, chosen
from tests.planning.scripts_to_plan import script

PROFILE = tacit.Profile(workers=2, compute=tacit.Constant(mean_s=0.02))
LOCAL, SIXTEEN = (tacit.LocalSGD(period=tacit.Every(n)) for n in (8, 16))


def row(strategy: tacit.Strategy, step_s: float, time_s: float | None = None) -> Row:
    interval = None if time_s is None else Interval(time_s, 0.95 * time_s, 1.05 * time_s)
    pace = Pace(step_s=step_s, bytes_per_step=1.0, computing=0.02 / step_s, hooks=0.0, waiting=0.0)
    return Row(strategy=strategy, ranks=(0, 1), pace=pace, fidelity="C", time_s=interval)


def test_the_ratio_is_taken_at_the_lowest_loss_that_both_reached() -> None:
    theirs = [(float(step), 10.0 - step / 10) for step in range(1, 81)]  # to 2
    ours = [(float(step), 10.0 - step / 20) for step in range(1, 101)]  # to 5
    assert ratio_of(ours, theirs) == pytest.approx(2.0)
    assert ratio_of(ours[:3], theirs) is None and ratio_of([], theirs) is None


def test_a_row_that_agrees_with_its_pilot_keeps_its_prediction() -> None:
    baseline, local = row(tacit.DDP(), 0.1, 10.0), row(LOCAL, 0.05, 5.0)
    kept, remark = corrected(replace(local, fidelity="A"), baseline, 1.2)
    assert (kept.time_s, kept.fidelity) == (local.time_s, "A") and "agrees with the simulation" in remark
    assert kept.relative == Interval(0.6, 0.6 / MARGIN, 0.6 * MARGIN, MARGIN)


def test_a_row_that_does_not_agree_gets_the_ratio_and_its_wide_range() -> None:
    baseline, local = row(tacit.DDP(), 0.1, 10.0), row(LOCAL, 0.05, 5.0)
    changed, remark = corrected(local, baseline, 1.8)
    assert changed.fidelity == "B" and changed.time_s.median == pytest.approx(9.0)
    assert changed.time_s.low == pytest.approx(9.5 * 0.9 / MARGIN) and changed.time_s.high > 9.0 * MARGIN
    assert "needed 1.80 times the steps of DDP" in remark and "the simulation says 1.00" in remark


def test_without_simulated_losses_the_ratio_decides() -> None:
    baseline = row(tacit.DDP(), 0.1)
    faster, _ = corrected(row(LOCAL, 0.05), baseline, 1.1)
    best, why = chosen([baseline, faster], baseline, PROFILE, Objective(), "")
    assert best is faster and "takes 0.55 (0.37 to 0.83) of the time of DDP" in why
    slower, _ = corrected(row(LOCAL, 0.05), baseline, 1.5)
    assert chosen([baseline, slower], baseline, PROFILE, Objective(), "")[0] is baseline


def test_finalists_are_the_best_rows_or_the_smallest_changes() -> None:
    baseline, rows = row(tacit.DDP(), 0.1, 9.0), [row(LOCAL, 0.05, 5.0), row(tacit.KAsync(k=1), 0.01, 1.0)]
    assert finalists_of([*rows, baseline], baseline) == [rows[0]]
    paces = [row(SIXTEEN, 0.0205), row(LOCAL, 0.021), row(tacit.LocalSGD(period=tacit.Every(2)), 0.06)]
    assert [one.strategy for one in finalists_of(paces, row(tacit.DDP(), 0.1))] == [LOCAL, SIXTEEN, paces[2].strategy]


class Failing(PilotJob):
    """Fails as a pilot on too small a machine does."""

    def rows(self, strategy: str, workers: int) -> list[tuple[int, float, float]]:
        raise PilotFailed("2 processes are too many")


def test_a_failed_pilot_changes_nothing() -> None:
    baseline, local = row(tacit.DDP(), 0.1, 10.0), row(LOCAL, 0.05, 5.0)
    done = piloted([local, baseline], baseline, Failing(workload="w"))
    assert done.rows == [local, baseline] and "The pilot of DDP failed" in done.remarks[0]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's agent leaves logs open
def test_a_script_is_piloted_on_real_processes(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(python))
    path = tmp_path / "train.py"
    path.write_text(script())
    rows = PilotJob(script=str(path), steps=25).rows(str(LOCAL), 2)
    assert [step for step, _, _ in rows] == [*range(1, 26)] and rows[-1][2] < rows[0][2]
