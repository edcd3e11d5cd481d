"""``tacit plan``: the table, the files, exit codes, and bad input."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.command_line import Command

PROFILE = """
[cluster]
workers = 2
compute = "Constant(mean_s=0.02)"
bandwidth_bytes_per_s = 100000.0
"""


@pytest.fixture(autouse=True)
def profile(tacit: Command) -> None:
    Path("hand.toml").write_text(PROFILE)


def test_a_plan_is_printed_and_written(tacit: Command) -> None:
    words = ("plan", "--profile", "hand.toml", "--workload", 'digits(model="softmax")', "--target-loss", "0.8")
    answer = tacit(
        *words, "-s", "LocalSGD(period=Every(8))", "--steps", "100", "--seeds", "1", "--no-tune", "--jobs", "1"
    )
    assert answer.exit_code == 0, answer.errors
    plan = tomllib.loads(Path("plan.toml").read_text())
    assert "Run on worker 0 alone: " in answer.output and "times as fast as DDP" in answer.output
    assert plan["strategy"] == "DDP()"
    assert "LocalSGD(period=Every(8)) · 2 workers · lr=0.1 · seed 0: loss 0.8 at step" in answer.output
    assert (
        plan["predicted"]["target_loss"] == 0.8 and plan["predicted"]["time_low_s"] < plan["predicted"]["time_high_s"]
    )
    assert json.loads(Path("plan.json").read_text())["stays_with_ddp"] is False
    again = tacit(*words)
    assert again.exit_code == 2 and "plan.toml exists; choose another --out, or replace it with --force" in again.errors


def test_staying_with_ddp_has_its_own_exit_code(tacit: Command) -> None:
    Path("fast.toml").write_text(PROFILE.replace("100000.0", "1e12"))
    answer = tacit("plan", "--profile", "fast.toml", "-s", "LocalSGD(period=Every(8))")
    assert answer.exit_code == 3 and "Stay with DDP: communication and waiting take" in answer.output


def test_a_loss_that_nothing_reaches_is_no_slow_candidate(tacit: Command) -> None:
    words = ("plan", "--profile", "hand.toml", "--workload", "quadratic(dimension=3)", "--target-loss", "-5")
    answer = tacit(
        *words, "-s", "LocalSGD(period=Every(2))", "--steps", "5", "--seeds", "1", "--no-tune", "--jobs", "1"
    )
    assert "1  DDP() · 2 workers · lr=0.1 · seed 0: not reached within its 5 steps, best loss" in answer.output
    assert "later than the best" not in answer.output and "No candidate reached" not in answer.output
    assert answer.errors.count("No candidate reached") == 1 and " of 2 workers. Ask for a higher loss" in answer.errors


def test_a_loss_that_nothing_reaches_fails_with_the_best_one(tacit: Command) -> None:
    words = ("plan", "--profile", "hand.toml", "--workload", "quadratic(dimension=3)", "--target-loss", "-5")
    answer = tacit(
        *words, "-s", "LocalSGD(period=Every(2))", "--steps", "5", "--seeds", "1", "--no-tune", "--jobs", "1"
    )
    assert (
        answer.exit_code == 1 and "No candidate reached the loss -5 within 5 steps. The best loss was" in answer.errors
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "nowhere"), "is not a profile: there is no nowhere"),
        (("--profile", "hand.toml", "--objective", "fame"), "must be one of time, bytes, cost"),
        (("--profile", "hand.toml", "--budget", "0"), "--budget 0 must be positive"),
        (
            ("--profile", "hand.toml", "--target-loss", "1", "--within", "2h"),
            "give --target-loss or --within, not both",
        ),
        (("--profile", "hand.toml", "--within", "2h", "--pilot"), "give --target-loss LOSS instead of --within"),
        (("--profile", "hand.toml", "--within", "0"), "--within 0 must be positive"),
        (("--profile", "hand.toml", "--steps", "0"), "--steps 0 must be at least 1"),
        (("--profile", "hand.toml", "--seeds", "1,1"), "different"),
        (("--profile", "hand.toml", "--objective", "bytes"), "to reach a loss; add --target-loss LOSS"),
        (("--profile", "hand.toml", "--objective", "cost"), "to reach a loss; add --target-loss LOSS"),
        (
            ("--profile", "hand.toml", "--objective", "bytes", "--within", "2h"),
            "give --target-loss LOSS instead of --within",
        ),
        (
            ("--profile", "hand.toml", "--objective", "cost", "--target-loss", "1"),
            "--objective cost needs --price-per-worker-hour or --price-per-gigabyte",
        ),
        (
            ("--profile", "hand.toml", "--objective", "cost", "--price-per-gigabyte", "-1"),
            "--price-per-gigabyte -1 must be a price, at least 0",
        ),
        (("--profile", "hand.toml", "-s", "LocalSDG"), "LocalSGD"),
    ],
)
def test_bad_input_says_how_to_proceed(tacit: Command, words: tuple[str, ...], message: str) -> None:
    answer = tacit("plan", *words)
    assert answer.exit_code == 2 and message in answer.errors


def test_a_plan_by_cost_shows_the_cost_of_each_row(tacit: Command) -> None:
    words = ("plan", "--profile", "hand.toml", "--workload", "quadratic(dimension=3)", "--target-loss", "1")
    options = ("--steps", "50", "--seeds", "1", "--no-tune", "--jobs", "1", "--objective", "cost")
    answer = tacit(*words, *options, "-s", "LocalSGD(period=Every(2))", "--price-per-worker-hour", "3600")
    plan = json.loads(Path("plan.json").read_text())
    header = next(line for line in answer.output.splitlines() if "strategy" in line)
    assert header.split().index("cost") == header.split().index("sent") + 1
    for row in plan["rows"]:
        assert f"  {len(row['ranks']) * row['time_s']['mean']:.3g}  " in answer.output


@pytest.mark.parametrize("rest", [("--out", "x.toml"), ("--profile", "hand.toml")])
def test_a_map_of_one_axis_does_not_take_an_option_as_the_other(tacit: Command, rest: tuple[str, str]) -> None:
    answer = tacit("plan", "--target-loss", "1", "--map", "workers=2:64", *rest)
    assert answer.exit_code == 2 and "--map needs two axes, such as --map workers=2:64 bandwidth=" in answer.errors


def test_options_are_whole_at_80_columns(tacit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = tacit("plan", "--help").output
    assert "--price-per-worker-hour" in shown and "COST/h" in shown and "COST/GB" in shown


@pytest.mark.slow
def test_a_map_is_printed_and_written(tacit: Command) -> None:
    words = ("plan", "--profile", "hand.toml", "--workload", 'digits(model="softmax")', "--target-loss", "0.8")
    axes = ("--map", "slow=1:4:2", "bandwidth=1Mbit/s:1Gbit/s:2")
    answer = tacit(*words, *axes, "-s", "LocalSGD(period=Every(8))", "--steps", "60", "--jobs", "1")
    assert answer.exit_code == 0, answer.errors
    assert "bandwidth \\ slow" in answer.output and ": fastest in " in answer.output
    assert Path("map.html").exists() and not Path("plan.toml").exists()
    assert len(json.loads(Path("map.json").read_text())["cells"]) == 2
    again = tacit(*words, *axes)
    assert again.exit_code == 2 and "map.html exists" in again.errors
    aimless = tacit("plan", "--profile", "hand.toml", "--force", *axes)
    assert aimless.exit_code == 2 and "--map needs --target-loss" in aimless.errors
