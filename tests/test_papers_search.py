"""The search of learning rates that every method of a paper's benchmark gets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.papers.prepared import Regression, epsilon_like
from benchmarks.papers.rows import Case, Row, Rows, Search

CASE = Case(1, "a problem", "a method")


def _losses(best: float) -> tuple[list[tuple[float, int]], Any]:
    calls: list[tuple[float, int]] = []

    def train(rate: float, seed: int) -> Row:
        calls.append((rate, seed))
        return {"score": abs(math.log(rate / best)) + 0.01 * seed}

    return calls, train


@pytest.mark.parametrize(
    ("best", "tried"),
    [(1.0, (0.5, 1.0, 2.0)), (3.9, (0.5, 1.0, 2.0, 4.0, 8.0)), (0.1, (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0))],
)
def test_a_search_goes_on_until_the_best_rate_lies_between_two(best: float, tried: tuple[float, ...], tmp_path: Path):
    calls, train = _losses(best)
    found = Search(rates=(0.5, 1.0, 2.0)).run(Rows(tmp_path / "rows.jsonl"), CASE, train)
    assert found.tried == tried
    assert abs(math.log(found.rate / best)) == min(abs(math.log(rate / best)) for rate in tried)
    assert [seed for _, seed in calls] == [100] * len(tried) + [0, 1, 2]


def test_rates_at_which_a_run_diverges_lose(tmp_path: Path):
    found = Search(rates=(0.5, 1.0, 2.0)).run(
        Rows(None), CASE, lambda rate, seed: {"score": math.inf if rate > 0.6 else 1.0 - rate}
    )
    assert found.rate == 0.5


def test_rows_of_an_interrupted_run_are_kept(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    calls, train = _losses(1.0)
    first = Search(rates=(0.5, 1.0, 2.0)).run(Rows(path), CASE, train)
    path.write_text(path.read_text()[:-20])  # the last line was cut
    made = len(calls)
    again = Search(rates=(0.5, 1.0, 2.0)).run(Rows(path), CASE, train)
    assert len(calls) == made + 1
    assert [row["score"] for row in again.rows] == [row["score"] for row in first.rows]


def test_the_set_of_epsilons_shape_and_the_minimum_on_it():
    x, y = epsilon_like(4000, 30)
    assert torch.allclose(x.norm(dim=1), torch.ones(4000), atol=1e-5)
    spread = x.square().mean(0)
    assert float(spread[0] / spread[9]) == pytest.approx(10, rel=0.3)
    problem = Regression("a set", x, y, strength=1e-2, batch_size=8)
    optimum = problem.minimum()
    assert float(problem.gradient(optimum.float()).norm()) < 1e-5
    assert problem.loss(optimum.float()) < problem.loss(torch.zeros(30))
    largest = float(torch.linalg.eigvalsh((x.T @ x).double())[-1]) / 4000
    assert problem.smoothness() == pytest.approx(0.25 * largest + 1e-2, rel=1e-3)
