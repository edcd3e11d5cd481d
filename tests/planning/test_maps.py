"""Maps: axes, profiles at their places, bounds between cells, the page, and small whole maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.cli.screens.map_screen import axis_of
from tacit.planning.maps.axes import Axis, axes_of, profile_at, resized
from tacit.planning.maps.cells import coarse_to_fine, step_s_on
from tacit.planning.maps.result import Cell
from tacit.planning.plan import Row
from tacit.planning.results import Interval
from tacit.report.plans.map_page import letter_of, render_map, value_text

pytestmark = pytest.mark.slow

PROFILE = tacit.Profile(workers=3, compute=tacit.Constant(mean_s=0.02), speed={2: 0.5}, bandwidth_bytes_per_s=1e6)
LOCAL = tacit.LocalSGD(period=tacit.Every(8))
OPTIONS: dict[str, Any] = {"target_loss": 0.9, "strategies": [LOCAL], "steps": 60, "seeds": [0], "jobs": 1}


@pytest.fixture(scope="module")
def plan() -> tacit.Plan:
    return tacit.plan(PROFILE, tacit.workloads.digits(model="softmax"), tune=False, **OPTIONS)


@pytest.fixture(scope="module")
def made(plan: tacit.Plan) -> tacit.PlanMap:
    return plan.map(bandwidth=(1e4, 1e9, 4), latency=(1e-6, 1e-2, 3))


def test_axes_are_spaced_at_equal_ratios() -> None:
    assert axis_of("workers=2:64").values == (2, 4, 8, 16, 32, 64)
    assert axis_of("bandwidth=8Mbit/s:800Mbit/s:3").values == pytest.approx((1e6, 1e7, 1e8))
    assert axis_of("latency=1ms:1ms").values == (1e-3,)
    assert len(axis_of("compute=0.5:2").values) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bandwidth", "must be NAME=LOW:HIGH or NAME=LOW:HIGH:COUNT"),
        ("bandwith=1:2", "the axis 'bandwith' is unknown; did you mean 'bandwidth'"),
        ("workers=8:2", "the smaller one first; try workers=2:8"),
        ("slow=1:4:x", "the count 'x' must be a whole number"),
        ("compute=a:b", "'a' must be a number"),
        ("slow=1:4:100", "must be between 1 and 64"),
    ],
)
def test_bad_axes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        axis_of(text)


def test_a_map_has_two_different_axes() -> None:
    with pytest.raises(ValueError, match="a map has two axes, and 1 were given"):
        axes_of({"bandwidth": (1, 2)})
    with pytest.raises(ValueError, match="both axes are 'slow'"):
        axes_of([Axis("slow", (1.0,)), Axis("slow", (2.0,))])


def test_profiles_have_the_values_of_their_places() -> None:
    there = profile_at(PROFILE, {"bandwidth": 5e6, "latency": 0.01, "slow": 4.0})
    assert there.bandwidth_bytes_per_s == pytest.approx(5e6) and there.latency_s == pytest.approx(0.01)
    assert there.mean_step_s(2) == pytest.approx(0.16) and there.mean_step_s(1) == pytest.approx(0.02)
    assert profile_at(PROFILE, {"compute": 3.0}).mean_step_s(0) == pytest.approx(0.06)
    assert resized(PROFILE, 2).workers == 2
    more = resized(PROFILE, 7)
    assert [more.mean_step_s(rank) for rank in range(7)] == pytest.approx([0.02, 0.02, 0.04, 0.02, 0.02, 0.04, 0.02])


def test_workers_of_one_machine_get_a_network() -> None:
    together = tacit.Profile(workers=2, hosts=1, bandwidth_bytes_per_s=1e6)
    assert profile_at(together, {"bandwidth": 1e5}).hosts is None


def test_every_place_is_visited_once() -> None:
    for shape in ((1, 1), (5, 1), (4, 3), (8, 8)):
        places = list(coarse_to_fine(shape))
        assert sorted(places) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]


def test_bounds_do_not_change_the_map(plan: tacit.Plan, made: tacit.PlanMap) -> None:
    """Each cell has the winner and the time that simulating every candidate there would give."""
    timed = [row for row in plan.rows if row.shortest_s is not None]
    assert made.simulated < len(timed) * 12
    for cell in (cell for row in made.cells for cell in row):
        assert cell is not None
        there = profile_at(PROFILE, cell.place)
        times_s = [
            row.shortest_s.median * step_s_on(row, plan.workload, there) / step_s_on(row, plan.workload, plan.profile)
            for row in timed
            if row.shortest_s is not None
        ]
        assert cell.time_s.median == pytest.approx(min(times_s), rel=0.011)


def test_the_slowest_network_favours_few_rounds_and_a_slow_worker_is_left_out(
    plan: tacit.Plan, made: tacit.PlanMap
) -> None:
    slowest = made.cells[-1][0]
    assert slowest is not None and not slowest.is_ddp and slowest.is_clear
    slow = plan.map(slow=(1, 50, 3), compute=(1, 2, 2)).cells[0][-1]
    assert slow is not None and 2 not in slow.fastest.ranks


def test_a_gain_below_ten_percent_or_an_overlap_is_not_clear(plan: tacit.Plan) -> None:
    other = next(row for row in plan.rows if row is not plan.baseline)

    def cell(time_s: Interval, row: Row = other) -> Cell:
        return Cell(place={}, workers=3, fastest=row, time_s=time_s, baseline_s=Interval(10.0, 9.0, 11.0))

    assert cell(Interval(5.0, 4.5, 5.5)).is_clear
    assert not cell(Interval(9.5, 9.5, 9.5)).is_clear
    assert not cell(Interval(8.0, 7.0, 9.1)).is_clear
    assert not cell(Interval(10.0, 9.0, 11.0), plan.baseline).is_clear


def test_a_map_is_saved_as_a_page_and_as_json(made: tacit.PlanMap, tmp_path: Path) -> None:
    page = made.save(tmp_path / "map.html").read_text(encoding="utf-8")
    table = json.loads((tmp_path / "map.json").read_text())
    assert [axis["name"] for axis in table["axes"]] == ["bandwidth", "latency"]
    assert [len(row) for row in table["cells"]] == [4, 4, 4]
    assert table["cells"][0][3]["place"] == {"bandwidth": 1e9, "latency": 1e-6}
    assert 'data-figure="map"' in page and "of 12" in page
    assert render_map(table) == page
    with pytest.raises(tacit.TacitError, match="must end in .html"):
        made.save(tmp_path / "map.png")


def test_numbers_of_workers_are_planned_one_by_one() -> None:
    made = tacit.plan_map(
        PROFILE,
        tacit.workloads.digits(model="softmax"),
        {"workers": (1, 2), "bandwidth": (1e4, 1e8, 2)},
        **OPTIONS,
    )
    assert [[cell.workers if cell else None for cell in row] for row in made.cells] == [[1, 2], [1, 2]]
    slowest = made.cells[0][1]
    assert slowest is not None and not slowest.is_ddp
    with pytest.raises(ValueError, match="use tacit.plan_map"):
        tacit.plan(PROFILE, tacit.workloads.digits()).map(workers=(1, 2), latency=(1e-4, 1e-3))


def test_a_plan_of_paces_has_no_map() -> None:
    with pytest.raises(tacit.TacitError, match="make it with target_loss"):
        tacit.plan(PROFILE, tacit.workloads.digits(), strategies=[LOCAL]).map(slow=(1, 2), latency=(1e-4, 1e-3))


def test_labels() -> None:
    assert [letter_of(place) for place in (0, 25, 26)] == ["A", "Z", "AA"]
    assert value_text("bandwidth", 1.25e6) == "10 Mbit/s" and value_text("latency", 1e-3) == "1.00 ms"
    assert value_text("workers", 8) == "8" and value_text("slow", 2.0) == "2.00×"
