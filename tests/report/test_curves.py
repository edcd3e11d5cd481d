"""Curves over seeds, checked by hand on a few rows."""

from __future__ import annotations

import math

import numpy as np

from tacit.record.trace import NOTE
from tacit.report import Entry
from tacit.report.curves import over_seeds, period_rows, spread_rows
from tests.report.synthetic_runs import local_run, row, tiny_run


def test_the_mean_is_taken_on_a_common_grid_up_to_the_shortest_seed() -> None:
    slow, fast = tiny_run([(0.0, 4.0), (2.0, 2.0), (4.0, 0.0)]), tiny_run([(0.0, 4.0), (1.0, 1.0), (3.0, 1.0)])
    curve = over_seeds([slow.history, fast.history], "time_s", "loss")
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 1, 2, 3])
    np.testing.assert_allclose(curve.mean, [4, 2, 1.5, 1])  # slow: 4, 3, 2, 1; fast: 4, 1, 1, 1
    np.testing.assert_allclose(curve.low, [4, 1, 1, 1])
    np.testing.assert_allclose(curve.high, [4, 3, 2, 1])


def test_a_held_curve_goes_on_to_the_end_of_the_longest_seed() -> None:
    slow, fast = tiny_run([(0.0, 4.0), (4.0, 0.0)]), tiny_run([(0.0, 4.0), (2.0, 1.0)], seed=1)
    curve = over_seeds([slow.history, fast.history], "time_s", "loss", is_held=True)
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 2, 4])
    np.testing.assert_allclose(curve.mean, [4, 1.5, 0.5])
    both = Entry("x", [slow, fast]).curve("time_s", "loss")
    assert both is not None and both.x[-1] == 4
    fast.status = "interrupted"
    cut = Entry("x", [slow, fast]).curve("time_s", "loss")
    assert cut is not None and cut.x[-1] == 2


def test_rows_without_a_finite_number_are_skipped() -> None:
    rows = [row(0.0, 4.0), row(1.0, None), row(2.0, math.nan), row(3.0, math.inf), row(4.0, 2.0)]
    curve = over_seeds([rows], "time_s", "loss")
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 4])
    assert over_seeds([[row(0.0, None)]], "time_s", "loss") is None
    assert over_seeds([], "time_s", "loss") is None


def test_of_rows_that_share_a_round_the_last_counts_and_the_start_stays() -> None:
    rows = [row(t, y, rounds=r) for t, y, r in [(0, 9.0, 0), (1, 8.0, 0), (2, 7.0, 1), (3, 6.0, 1), (4, 5.0, 2)]]
    curve = over_seeds([rows], "round", "loss")
    assert curve is not None
    np.testing.assert_allclose(curve.mean, [9, 6, 5])


def test_a_stepwise_curve_holds_its_value() -> None:
    first = [{"time_s": 0.0, "period": 4}, {"time_s": 2.0, "period": 8}]
    second = [{"time_s": 0.0, "period": 4}, {"time_s": 1.0, "period": 6}, {"time_s": 2.0, "period": 6}]
    curve = over_seeds([first, second], "time_s", "period", is_stepwise=True)
    assert curve is not None
    np.testing.assert_allclose(curve.low, [4, 4, 6])
    np.testing.assert_allclose(curve.high, [4, 6, 8])


def test_a_long_history_is_thinned_and_keeps_its_ends() -> None:
    rows = [row(t / 10, 1 / (1 + t)) for t in range(5000)]
    curve = over_seeds([rows], "time_s", "loss", points=100)
    assert curve is not None
    assert len(curve.x) == 100
    assert (curve.x[0], curve.x[-1]) == (0.0, 499.9)


def test_seeds_without_a_common_stretch_give_no_curve() -> None:
    assert over_seeds([[row(0.0, 1.0), row(1.0, 0.5)], [row(2.0, 1.0), row(3.0, 0.5)]], "time_s", "loss") is None


def test_the_period_comes_from_the_history_or_else_from_the_notes() -> None:
    run = tiny_run([(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)])
    run.trace.record(NOTE, 0, 0.5, 0.5, value=7.0, label="period")
    run.trace.record(NOTE, 0, 0.6, 0.6, value=1.0, label="something else")
    (only,) = period_rows(run)
    assert only == {"time_s": 0.5, "period": 7.0, "bytes_sent": 50.0, "round": 0.5, "gradients": 1.0, "step": 0.5}
    run.history[0]["period"] = 3
    assert [row["period"] for row in period_rows(run)] == [3, None, None]


def test_one_spread_per_round_is_kept_the_widest() -> None:
    rows = spread_rows(local_run(period=4, steps=12, workers=2))
    assert [r["round"] for r in rows] == [0, 1, 2]
    assert [r["step"] for r in rows] == [3, 7, 11]
