"""What the report of a run with faults computes from the workers' records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.chaos.analysis import analyse, stall_after
from tacit.chaos.records import Life, latest_updates


def life(seat: int, number: int, rows: list[dict]) -> Life:
    return Life(seat, number, [{"event": "started", "time_s": 0.0}, *rows])


def steps(first: int, times_s: list[float], models: dict[int, int]) -> list[dict]:
    rows = [{"time_s": time_s, "step": first + n, "updates": first + n} for n, time_s in enumerate(times_s)]
    return [row | ({"model": models[row["step"]]} if row["step"] in models else {}) for row in rows]


def times(first_s: float, count: int, pause_s: float = 0.02) -> list[float]:
    return [first_s + pause_s * n for n in range(count)]


def done(time_s: float, model: int, loss: float) -> dict:
    return {"time_s": time_s, "event": "done", "step": 150, "updates": 150, "model": model, "loss": loss}


def test_recovery_return_and_missed_steps_of_a_kill():
    """Worker 1 is killed at 1 s; worker 0 stands still until 1.4 s; worker 1's next life steps at 3 s."""
    survivor = life(0, 1, [*steps(1, [*times(0.0, 51), *times(1.4, 100)], {}), done(4.0, 5, 0.5)])
    lost = life(1, 1, steps(1, times(0.0, 50), {}))
    back = life(1, 2, [*steps(132, times(3.0, 20), {}), done(4.0, 5, 0.5)])
    fault = {"kind": "kill", "fault": "kill of 1", "seats": [1], "at_s": 1.0, "until_s": 1.0}
    found = analyse([survivor, lost, back], [fault], 2, compares_rounds=True)
    [recovered] = found["faults"]
    assert recovered["recovery_s"] == pytest.approx(0.4) and recovered["others_stalled"] == 1
    assert recovered["return_s"] == pytest.approx(2.0) and recovered["missed_steps"] == 132 - 50 - 1
    assert found["restarts"] == 1 and found["final_models"] == 1 and found["missing_seats"] == []
    assert found["loss"] == 0.5 and found["repeated_steps"] == 0


def test_nobody_waits_where_no_pause_is_long():
    calm = life(0, 1, steps(1, times(0.0, 200), {}))
    assert stall_after(calm, 1.0) is None
    late = life(0, 1, steps(1, [*times(0.0, 300), *times(10.0, 50)], {}))
    assert stall_after(late, 1.0) is None  # this pause begins five seconds later and has another cause


def test_the_progress_of_a_run_is_read_from_the_ends_of_its_records(tmp_path: Path):
    assert latest_updates(tmp_path) == 0
    for seat, updates in enumerate((400, 700)):
        rows = [json.dumps({"step": step, "updates": step}) for step in range(updates + 1)]
        (tmp_path / f"seat-{seat}-life-1.jsonl").write_text("\n".join([*rows, '{"event": "error"}', '{"step": 90']))
    assert latest_updates(tmp_path) == 700


def test_unequal_models_and_repeated_steps_are_found():
    first = life(0, 1, [*steps(1, times(0.0, 20), {8: 11, 16: 12}), done(1.0, 1, 0.5)])
    second = life(1, 1, [*steps(1, times(0.0, 20), {8: 11, 16: 13}), *steps(17, times(0.5, 4), {}), done(1.0, 2, 0.7)])
    found = analyse([first, second], [], 3, compares_rounds=True)
    assert (found["rounds_compared"], found["unequal_rounds"]) == (2, [16])
    assert found["final_models"] == 2 and found["missing_seats"] == [2]
    assert found["repeated_steps"] == 4 and found["loss"] == pytest.approx(0.6)
    assert analyse([first, second], [], 3, compares_rounds=False)["rounds_compared"] is None


def test_a_pause_belongs_to_the_fault_before_it_and_not_to_a_worker_that_another_fault_hits():
    """Worker 2 is stopped from 1.5 to 2.5 s; worker 0 pauses from 1.6 s to 2.6 s; nobody pauses for the kill at 1 s."""
    rows = {
        0: [*times(0.0, 81), *times(2.6, 50)],
        1: times(0.0, 50),
        2: [*times(0.0, 76), *times(2.5, 50)],
    }
    lives = [life(seat, 1, steps(1, own, {})) for seat, own in rows.items()]
    faults = [
        {"kind": "kill", "fault": "kill of 1", "seats": [1], "at_s": 1.0, "until_s": 1.0},
        {"kind": "stop", "fault": "stop of 2", "seats": [2], "at_s": 1.5, "until_s": 2.5},
    ]
    kill, stop = analyse(lives, faults, 3, compares_rounds=False)["faults"]
    assert kill["recovery_s"] == 0.0 and kill["others_stalled"] == 0
    assert stop["recovery_s"] == pytest.approx(1.1) and stop["others_stalled"] == 1
