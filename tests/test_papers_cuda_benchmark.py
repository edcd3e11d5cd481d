"""The papers' benchmark for a GPU: a quick run on the CPU makes every run of a part once, and its summary has a table."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers_cuda import __main__ as benchmark
from benchmarks.papers_cuda.parts import GROUPS, SEEDS, TITLES, TUNING_SEED, Group
from benchmarks.papers_cuda.search import Search
from benchmarks.papers_cuda.trainings import Training, read_rows

KEPT = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "papers_cuda_rows.jsonl"


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["papers_cuda", *words])
    benchmark.main()


@pytest.mark.paper
@pytest.mark.parametrize("part", sorted(TITLES))
def test_a_quick_run_makes_every_run_of_a_part_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
):
    rows, words = tmp_path / "rows.jsonl", ("--quick", "--device", "cpu", "--parts", str(part))
    # Of each group a few methods: the first, and those that are unlike it.
    few = [replace(group, methods=dict(list(group.methods.items())[::3])) for group in GROUPS]
    monkeypatch.setattr(benchmark, "GROUPS", few)
    _run(monkeypatch, *words, "--rows", str(rows), "--cost")
    assert not rows.exists() and "runs or more are missing" in capsys.readouterr().out
    _run(monkeypatch, *words, "--rows", str(rows))
    made = rows.read_text()
    groups = [group for group in few if group.part == part]
    found = read_rows(rows)
    assert {(one.group, one.method) for one in found} == {(g.name, m) for g in groups for m in g.methods}
    assert all(row["status"] == "finished" and row["curve"][-1][4] is not None for row in found.values())
    _run(monkeypatch, *words, "--rows", str(rows))
    assert rows.read_text() == made
    _run(monkeypatch, *words, "--rows", str(rows), "--summary", str(tmp_path / "summary.json"))
    tables = json.loads((tmp_path / "summary.json").read_text())["tables"]
    assert {name: set(table) for name, table in tables.items()} == {
        f"part {group.part}, {group.name}": set(group.methods) for group in groups
    }
    assert (
        f"summary_{part}.svg" in (tmp_path / "summary.md").read_text() and (tmp_path / f"summary_{part}.svg").exists()
    )


def _accuracies(group: Group, best: float, search: Search) -> list[Training]:
    """Make the runs of a search whose accuracy is highest at the rate ``best``."""
    rows, order = {}, []
    while (one := search.next(rows)) is not None:
        rows[one] = {"lr": one.lr, "accuracy": -abs(one.lr - best), "seed": one.seed}
        order.append(one)
    return [one for one in order if one.group == group.name]


def test_a_search_goes_beyond_an_edge_and_then_repeats_the_best_rate():
    group = replace(next(one for one in GROUPS if one.name == "n = 5"), methods={"SGD": GROUPS[0].methods["CPSGD"]})
    made = _accuracies(group, 0.8, Search([group]))
    assert [one.lr for one in made] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 0.8, 0.8, 0.8]
    assert [one.seed for one in made[-3:]] == list(SEEDS)
    assert {one.epochs for one in made[:-3]} == {group.setting.tuning_epochs}
    assert {one.epochs for one in made[-3:]} == {group.setting.epochs}


def test_a_group_takes_the_rates_of_another():
    groups = [replace(one, methods={"CPSGD": one.methods["CPSGD"]}) for one in GROUPS if one.part == 1]
    made = _accuracies(groups[1], 0.4, Search(groups))
    assert [(one.lr, one.seed) for one in made] == [
        (0.2, TUNING_SEED), (0.4, TUNING_SEED), (0.8, TUNING_SEED), (0.4, 0), (0.4, 1), (0.4, 2)
    ]  # fmt: skip


def test_rows_of_the_first_benchmark_are_not_made_again():
    rows = read_rows(KEPT)
    assert Training(1, "shuffled", "CPSGD", 0.4, TUNING_SEED, 40) in rows
    coming = Search(GROUPS).next(rows)
    assert coming is not None and coming not in rows and coming.part == 1


@pytest.mark.paper
@pytest.mark.processes
def test_runs_in_other_processes_are_those_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    few = [replace(group, methods={"SGD": group.methods["SGD"]}) for group in GROUPS if group.name == "n = 5"]
    monkeypatch.setattr(benchmark, "GROUPS", few)
    for jobs in ("1", "2"):
        rows = tmp_path / f"rows-{jobs}.jsonl"
        _run(monkeypatch, "--quick", "--device", "cpu", "--parts", "3", "--jobs", jobs, "--rows", str(rows))
    alone, together = (read_rows(tmp_path / f"rows-{jobs}.jsonl") for jobs in ("1", "2"))
    assert len(alone) == 2 and {one: row["curve"] for one, row in alone.items()} == {
        one: row["curve"] for one, row in together.items()
    }
