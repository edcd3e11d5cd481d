"""Progress files: what a run writes while it goes on is what a reader finds, at any moment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tacit.record.progress import interval_s, progress_file
from tacit.watch.followed_run import FollowedRun
from tacit.watch.progress_reader import progress_of
from tests.report.synthetic_runs import tiny_run
from tests.watch.progress_files import Worker, two_workers


def test_a_reader_follows_what_is_appended(tmp_path: Path) -> None:
    followed = FollowedRun(tmp_path / "run")
    followed.read()
    assert followed.state == "waiting" and "does not exist yet" in followed.what_is_missing
    workers = two_workers(tmp_path / "run")
    followed.read()
    assert followed.state == "running" and followed.what_is_missing == ""
    assert [sum(one.steps for one in worker.slices) for worker in followed.workers] == [20, 20]
    assert [one.loss for one in followed.workers[0].evaluations] == [2.0, 1.0, pytest.approx(2 / 3), 0.5, 0.4]
    workers[0].work(5.0, 5, 0.25, 0.05, 500)
    workers[0].writer.end("finished")
    followed.read()
    assert followed.state == "finished" and followed.workers[0].slices[-1].step == 25


def test_an_incomplete_line_waits_for_its_end_and_damage_is_left_out(tmp_path: Path) -> None:
    two_workers(tmp_path)
    path = progress_file(tmp_path, 0)
    whole = path.read_text()
    path.write_text(whole[:-20])
    followed = FollowedRun(tmp_path)
    followed.read()
    seen = len(followed.workers[0].evaluations)
    with path.open("a") as file:
        file.write(whole[-20:] + '{"at": 1, "step": 1, "time_s": NaN}\n{"at": [], "x"\n[]\n3\n')
    followed.read()
    assert len(followed.workers[0].evaluations) == seen + 1 == 5
    assert len(followed.workers[0].slices) == 4


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    two_workers(tmp_path)
    again = Worker(tmp_path, 0)
    again.writer.continue_from(2.0)
    again.work(2.5, 3, 0.2, 0.0, 300)
    followed = FollowedRun(tmp_path)
    followed.read()
    slices = followed.workers[0].slices
    assert [one.time_s for one in slices] == [1.0, 2.0, 2.5]
    assert sum(one.sent_bytes for one in slices) == 1300 and slices[-1].elapsed_s == 0.5
    assert [one.time_s for one in followed.workers[0].evaluations] == [0.0, 1.0, 2.0]


def test_another_run_in_the_same_folder_replaces_all(tmp_path: Path) -> None:
    two_workers(tmp_path)[0].writer.end("finished")
    fresh = Worker(tmp_path, 0, workers=1)
    fresh.writer.evaluated(0, 0.0, {"loss": 7.0})
    fresh.work(0.1, 1, 0.1, 0.0, 0)
    followed = FollowedRun(tmp_path)
    followed.read()
    assert followed.state == "running" and len(followed.workers) == 1
    assert [one.loss for one in followed.workers[0].evaluations] == [7.0]
    assert len(followed.workers[0].slices) == 1


def test_lines_come_twice_a_second_and_in_long_runs_every_ten_seconds(tmp_path: Path) -> None:
    assert [interval_s(time_s) for time_s in (0.0, 1.0, 3600.0, 1e6)] == pytest.approx([0.5, 0.5, 3.6, 10.0])
    worker = Worker(tmp_path, 0)
    assert worker.writer.is_due
    worker.work(1e6, 1, 0.0, 0.0, 0)
    assert not worker.writer.is_due


def test_a_worker_that_does_not_see_the_folder_writes_nothing(tmp_path: Path) -> None:
    Worker(tmp_path / "elsewhere", 1).work(1.0, 1, 0.5, 0.0, 10)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_disk_ends_the_file_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(tmp_path, 0)
    progress_file(tmp_path, 0).unlink()
    progress_file(tmp_path, 0).mkdir()
    with caplog.at_level(logging.WARNING, "tacit"):
        worker.work(1.0, 1, 0.5, 0.0, 10)
        worker.work(2.0, 1, 0.5, 0.0, 10)
    assert "no more progress is written" in caplog.text and len(caplog.records) == 1


def test_a_saved_run_has_the_progress_that_its_trace_tells() -> None:
    run = tiny_run([(0.0, 2.0), (2.0, 1.0), (4.0, 0.5)])
    workers = progress_of(run)
    sent = sum(one.sent_bytes for worker in workers for one in worker.slices)
    assert sent == run.summary()["bytes_sent"] > 0
    assert sum(one.steps for worker in workers for one in worker.slices) == run.summary()["gradients"]
    assert [one.loss for one in workers[0].evaluations] == [2.0, 1.0, 0.5]
