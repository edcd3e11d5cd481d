"""The display of a comparison: a row for each run in progress, and the time left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tacit import AllReduce, Cluster, Run, simulate, workloads
from tacit.cli.screens import comparison_screen
from tacit.cli.screens.comparison_screen import ComparisonScreen
from tacit.compare.tasks import Task


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(workloads.quadratic(dimension=3), AllReduce(), cluster=Cluster(workers=2), steps=4)


def test_runs_in_progress_have_rows_and_the_time_left_follows_their_pace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(comparison_screen.time, "monotonic", lambda: now_s)
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    first, second, reused = (Task(AllReduce(), seed, 0.1, f"AllReduce() · seed {seed}") for seed in range(3))
    with ComparisonScreen(console, total=4) as screen:
        screen.end(reused, run)  # of an earlier comparison: it says nothing about the pace
        assert screen.time_left() == ""
        screen.begin(first)
        screen.begin(second)
        now_s = 110.0
        screen.step(first, 2, 4, 0.5, 0.25)
        screen.step(second, 2, 4, 0.5, None)
        assert screen.time_left() == "about 20 s left"  # 1 of 3 runs in 10 s
        now_s = 220.0
        assert screen.time_left() == "about 4 min left"
        assert [task.description for task in screen.progress.tasks] == ["all runs", first.title, second.title]
        assert "0.5 s virtual · loss 0.25" in screen.progress.tasks[1].fields["state"]
        screen.end(second, run)
        assert [task.description for task in screen.progress.tasks] == ["all runs", first.title]
        assert screen.progress.tasks[0].completed == 2
    assert isinstance(console.file, io.StringIO)
    assert "2/4  AllReduce() · seed 1: loss " in console.file.getvalue()
