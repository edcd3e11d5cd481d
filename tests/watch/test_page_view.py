"""What the page says about a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.record.trace import COMPUTE, EXCHANGE, HOOK, Event, Trace
from tacit.watch.followed_run import FollowedRun
from tacit.watch.page_view import view_of
from tacit.watch.progress_reader import progress_of
from tests.report.synthetic_runs import tiny_run
from tests.watch.progress_files import Worker, two_workers

PREDICTED = {
    "step_s": 0.2,
    "target_loss": 0.7,
    "time_median_s": 2.5,
    "curve": {"time_s": [0.0, 2.5], "loss": [2.0, 0.7], "step": [0, 12]},
}


def view(folder: Path) -> dict[str, Any]:
    followed = FollowedRun(folder)
    followed.read()
    found = view_of(followed)
    json.dumps(found, allow_nan=False)
    return found


def tiles(shown: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {tile["name"]: (tile["value"], tile["note"]) for tile in shown["tiles"]}


def test_blocked_time_of_the_slowest_worker_is_the_wire_and_more_is_waiting(tmp_path: Path) -> None:
    two_workers(tmp_path)
    rows = {
        row["name"]: {part["name"]: part["share"] for part in row["parts"]} for row in view(tmp_path)["bars"]["rows"]
    }
    assert rows["worker 0"] == pytest.approx({"computing": 0.25, "hooks": 0.05, "wire": 0.2, "waiting": 0.5})
    assert rows["worker 1"] == pytest.approx({"computing": 0.75, "hooks": 0.05, "wire": 0.2, "waiting": 0.0})
    assert rows["all workers"]["waiting"] == pytest.approx(0.25)


def test_without_rounds_all_blocked_time_is_waiting(tmp_path: Path) -> None:
    two_workers(tmp_path, has_rounds=False)
    rows = {
        row["name"]: {part["name"]: part["share"] for part in row["parts"]} for row in view(tmp_path)["bars"]["rows"]
    }
    assert rows["worker 1"] == pytest.approx({"computing": 0.75, "hooks": 0.05, "waiting": 0.2})


def test_the_tiles_say_what_is_left_who_is_slow_and_what_is_saved(tmp_path: Path) -> None:
    two_workers(tmp_path)
    shown = view(tmp_path)
    found = tiles(shown)
    assert shown["progress"] == "step 20 of 40" and shown["done"] == 0.5 and shown["planned_done"] is None
    assert found["time left"] == ("4.00 s", "of 8.00 s")
    assert found["time of a step"][0] == "200 ms"
    assert found["slowest worker"] == ("worker 1", "computes 150 ms a step, 3.0× the fastest")
    assert found["period"][0] == "2"
    whole = 20 * sum(ring_all_reduce_bytes(100, 4, 2))
    assert found["bytes saved"] == (
        f"{100 * (1 - 4000 / whole):.0f} %",
        "4.00 kB sent; all-reduce in every step: 16.0 kB",
    )


def test_a_run_with_a_plan_is_shown_next_to_it(tmp_path: Path) -> None:
    two_workers(tmp_path, predicted=PREDICTED)
    shown = view(tmp_path)
    found = tiles(shown)
    assert found["time of a step"] == ("200 ms", "200 ms planned: on plan")
    assert found["time left"] == ("4.00 s", "of 8.00 s, 8.00 s planned")
    assert found["loss"] == ("0.4000", "target 0.7, after 2.00 s (2.50 s planned)")
    assert shown["planned_done"] == pytest.approx(0.5)
    names = {series["name"]: series["points"] for series in shown["charts"][0]["series"]}
    assert names["planned"] == [(0.0, 2.0), (2.5, 0.7)] and names["loss"][-1] == (4.0, 0.4)
    assert shown["charts"][0]["target"] == 0.7


def test_a_server_counts_updates_and_training_losses_stand_in_for_evaluations(tmp_path: Path) -> None:
    worker = Worker(tmp_path, 0, has_rounds=False, steps=100)
    worker.writer.observe(3.0)
    worker.writer.observe(1.0)
    worker.work(1.0, 4, 0.5, 0.0, 0, updates=20)
    worker.work(2.0, 4, 0.5, 0.0, 0, updates=40)
    shown = view(tmp_path)
    assert shown["progress"] == "update 40 of 100"
    assert tiles(shown)["time of an update"][0] == "50.0 ms"
    assert shown["charts"][0]["series"][0]["points"] == [(1.0, 2.0)]
    assert shown["message"] == "1 of 2 workers can be seen here; the folders of other machines cannot."


def test_a_saved_run_shows_its_final_state(tmp_path: Path) -> None:
    run = tiny_run([(0.0, 2.0), (2.0, 1.0), (4.0, 0.5)])
    run.save(tmp_path / "run")
    shown = view(tmp_path / "run")
    assert shown["state"] == "finished" and shown["is_over"]
    assert tiles(shown)["time"][0] == "4.00 s" and tiles(shown)["loss"][0] == "0.5000"


def test_a_step_that_is_longer_than_a_slice_does_not_make_a_bar_longer_than_the_run(tmp_path: Path) -> None:
    trace = Trace()
    for rank in (0, 1):
        begun_s = 0.0
        for step in range(1, 1001):  # each slice of the page has five steps, and the long ones cover many slices
            computed_s = begun_s + (20.0 if step % 250 == 0 else 0.07)
            trace.record(COMPUTE, rank, begun_s, computed_s, step=step)
            trace.record(HOOK, rank, computed_s, computed_s + 0.01, step=step)
            trace.record(EXCHANGE, rank, computed_s + 0.01, computed_s + 0.03, step=step, round=step, size_bytes=8)
            begun_s = computed_s + 0.03
    run = replace(tiny_run([(0.0, 2.0), (2.0, 1.0)]), trace=trace, steps=1000)
    run.save(tmp_path)
    rows = {
        row["name"]: {part["name"]: part["share"] for part in row["parts"]} for row in view(tmp_path)["bars"]["rows"]
    }
    whole_s = 4 * 20.0 + 996 * 0.07 + 1000 * 0.03
    computing = (whole_s - 30.0) / whole_s
    expected = {"computing": computing, "hooks": 10.0 / whole_s, "wire": 20.0 / whole_s, "waiting": 0.0}
    assert all(row == pytest.approx(expected, abs=1e-6) for row in rows.values()) and len(rows) == 3
    slices = progress_of(run)[0].slices
    assert max((one.compute_s + one.hook_s) / one.elapsed_s for one in slices) <= 1 + 1e-6


def test_a_saved_run_without_the_numbers_of_a_worker_says_so(tmp_path: Path) -> None:
    whole = tiny_run([(0.0, 2.0), (2.0, 1.0), (4.0, 0.5)])
    partial = replace(whole, trace=Trace(), record={"world": "processes"})
    partial.trace.rows.extend(plain for plain in whole.trace.rows if Event._make(plain).rank == 0)
    partial.save(tmp_path / "partial")
    assert view(tmp_path / "partial")["message"].startswith("The numbers of worker 1 of 2 are missing")
    replace(whole, record={"world": "processes"}).save(tmp_path / "whole")
    assert view(tmp_path / "whole")["message"] == ""


def test_a_run_that_has_begun_again_replaces_the_saved_one(tmp_path: Path) -> None:
    tiny_run([(0.0, 2.0), (2.0, 1.0)]).save(tmp_path)
    two_workers(tmp_path)
    assert view(tmp_path)["state"] == "running"


def test_a_folder_of_a_comparison_is_explained(tmp_path: Path) -> None:
    (tmp_path / "compare.toml").write_text("")
    assert "is a comparison, not a run" in view(tmp_path)["message"]
    (tmp_path / "compare.toml").unlink()
    assert "progress_folder=" in view(tmp_path)["message"]
