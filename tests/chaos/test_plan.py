"""Plans of faults: files, seeds, the simulator's faults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import tacit
from tacit.chaos import ChaosFault, ChaosPlan, draw_plan

PLAN = ChaosPlan(
    workers=4,
    for_s=60.0,
    seed=7,
    faults=(
        ChaosFault(kind="slow", seats=(2,), at_s=30.0, for_s=3.0, factor=4.0),
        ChaosFault(kind="kill", seats=(3, 1), at_s=5.0),
        ChaosFault(kind="stop", seats=(0,), at_s=20.0, for_s=2.5),
        ChaosFault(kind="cut", seats=(1, 2), at_s=40.0, for_s=4.0),
        ChaosFault(kind="fill", at_s=50.0, for_s=2.0),
    ),
)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path):
    PLAN.write(tmp_path / "plan.toml")
    assert ChaosPlan.read(tmp_path / "plan.toml") == PLAN
    assert [fault.kind for fault in PLAN.faults] == ["kill", "stop", "slow", "cut", "fill"]  # by time


def test_equal_seeds_draw_equal_plans_that_obey_their_limits():
    kinds = ("kill", "stop", "slow", "cut", "fill")
    drawn = [draw_plan(seed, workers=6, for_s=300.0, kinds=kinds, spared=(0,), interval_s=3.0) for seed in range(20)]
    assert drawn[3] == draw_plan(3, workers=6, for_s=300.0, kinds=kinds, spared=(0,), interval_s=3.0)
    assert len({plan.faults for plan in drawn}) == 20
    found = [fault for plan in drawn for fault in plan.faults]
    assert {fault.kind for fault in found} == set(kinds)
    assert any(fault.kind == "kill" and len(fault.seats) == 2 for fault in found)
    assert not any(0 in fault.seats for fault in found if fault.kind == "kill")
    assert all(60 < len(plan.faults) < 120 for plan in drawn)
    small = draw_plan(1, workers=2, for_s=200.0, interval_s=2.0)
    assert small.min_workers == 1 and len(small.faults) > 10


def test_the_simulator_gets_the_same_faults():
    faults = PLAN.simulated()
    assert [str(fault) for fault in faults[:3]] == [
        "Crash(rank=1, at_s=5.0, for_s=8.0)",
        "Crash(rank=3, at_s=5.0, for_s=8.0)",
        "Pause(rank=0, at_s=20.0, for_s=2.5)",
    ]
    assert [str(fault) for fault in faults[3:]] == [
        "Slow(rank=2, factor=4.0, at_s=30.0, for_s=3.0)",
        "Partition(ranks=(1,), at_s=40.0, for_s=4.0)",
        "Partition(ranks=(2,), at_s=40.0, for_s=4.0)",
    ]
    assert [*tacit.Cluster(workers=4, faults=faults).faults] == faults


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for_s = 9", "workers is missing"),
        ("workers = 4\nfor_s = 9\nfault = 3", r"write each fault as a \[\[fault\]\]"),
        ("workers = 1\nfor_s = 9", "workers=1 must be at least 2"),
        ("workers = 4\nfor_s = 9\nmin_workers = 5", "min_workers=5 must be from 1 to workers=4"),
        ("workers = 4\nfor_s = 9\nseats = 4", "seats is unknown; known are workers, for_s"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nseats = [1]", "fault 1: at_s is missing"),
        (
            "workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kil'\nat_s = 1\nseats = [1]",
            "kind='kil' must be one of kill, stop",
        ),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = 1\nseats = [4]", "there is no seat 4.*are 0 to 3"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = 1\nseats = []", "must name the workers"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = 9\nseats = [1]", "the plan ends at for_s=9"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = -1\nseats = [1]", "at_s=-1 must be a time"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'stop'\nat_s = 1\nseats = [1]", "for_s=None must be a positive"),
        ("workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = 1\nseats = [1]\nfor_s = 2", "remove for_s=2"),
        (
            "workers = 4\nfor_s = 9\n[[fault]]\nkind = 'slow'\nat_s = 1\nseats = [1]\nfor_s = 2",
            "factor=None must be above 1",
        ),
        (
            "workers = 4\nfor_s = 9\n[[fault]]\nkind = 'kill'\nat_s = 1\nseats = [0, 1, 2, 3]",
            "it leaves 0 of workers=4",
        ),
        ("workers = 4", "for_s is missing"),
        ("workers = ", "is not TOML"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_its_reason(text: str, message: str, tmp_path: Path):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        ChaosPlan.read(tmp_path / "plan.toml")


def test_a_plan_that_no_worker_survives_is_refused():
    one = ChaosFault(kind="kill", seats=(0,), at_s=1.0)
    with pytest.raises(ValueError, match="kill of 1 at 2 s: it leaves 0 of workers=2, and min_workers=1"):
        ChaosPlan(workers=2, for_s=30.0, faults=(one, ChaosFault(kind="kill", seats=(1,), at_s=2.0)))
    later = ChaosFault(kind="kill", seats=(1,), at_s=20.0)
    assert len(ChaosPlan(workers=2, for_s=30.0, faults=(one, later)).faults) == 2
    with pytest.raises(ValueError, match="kill of 1 at 20 s: it leaves 0"):  # nobody is started again
        ChaosPlan(workers=2, for_s=30.0, faults=(one, later), max_restarts=0)


def test_a_plan_that_kills_the_server_is_refused():
    with pytest.raises(ValueError, match="kill of 1, 3 at 5 s: worker 1 hosts the server"):
        PLAN.check_hosts(2)
    PLAN.check_hosts(1)


def test_a_plan_that_cannot_be_drawn_or_read_says_so(tmp_path: Path):
    with pytest.raises(ValueError, match="for_s=10 is too short to draw faults for; choose more than 15 seconds"):
        draw_plan(0, workers=4, for_s=10.0)
    with pytest.raises(ValueError, match=r"none\.toml cannot be read: No such file"):
        ChaosPlan.read(tmp_path / "none.toml")
