"""``tacit plan train.py``: the journey from a script to its run, options that a script refuses, and broken files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.command_line import Command
from tests.planning.scripts_to_plan import script

PROFILE = """
[cluster]
workers = 2
compute = "20ms"
bandwidth = "16kbit/s"
latency = "0.2ms"
"""


@pytest.fixture(autouse=True)
def files(tacit: Command) -> None:
    Path("hand.toml").write_text(PROFILE)
    Path("train.py").write_text(script('"plan.toml"'))  # the plan does not exist yet


def test_a_script_is_planned_and_its_plan_simulated(tacit: Command) -> None:
    words = ("plan", "train.py", "--profile", "hand.toml", "--target-loss", "0.3", "--jobs", "1")
    answer = tacit(*words, "-s", "LocalSGD(period=Every(8))", "--own", "AllReduce", "--", "--steps", "100")
    assert answer.exit_code in (0, 3), answer.errors
    assert "with your settings" in answer.output and "at its best lr" not in answer.output
    assert "LocalSGD(period=Every(8)) · 2 workers · seed 0: loss 0.3 at step" in answer.output
    plan = tomllib.loads(Path("plan.toml").read_text())
    assert plan["settings"]["script"] == "train.py" and plan["settings"]["arguments"] == ["--steps", "100"]
    assert plan["predicted"]["window_batches"] == 20 and "lr" not in plan
    rows = json.loads(Path("plan.json").read_text())["rows"]
    assert {row["strategy"] for row in rows if row["is_kept"]} == {"DDP()", "AllReduce()"}
    simulated = tacit("simulate", "train.py", "--plan", "plan.toml", "--out", "again", "--", "--steps", "100")
    assert simulated.exit_code == 0, simulated.errors
    run = tomllib.loads(Path("again/run.toml").read_text())
    assert run["strategy"] == plan["strategy"] and run["cluster"]["bandwidth_bytes_per_s"] == 2000.0
    assert run["cluster"]["workers"] == plan["workers"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lr", "0.1"), "--lr cannot be used with a script"),
        (("--workload", "digits()"), "--workload cannot be used with a script"),
        (("--map", "slow=1:4", "latency=1ms:2ms"), "--map needs a workload"),
        (("--target-loss", "0.3", "-s", "LocalSDG"), "LocalSGD"),
    ],
)
def test_what_a_script_chooses_is_refused(tacit: Command, words: tuple[str, ...], message: str) -> None:
    answer = tacit("plan", "train.py", "--profile", "hand.toml", *words)
    assert answer.exit_code == 2 and message in answer.errors


def test_a_script_that_fails_is_shown(tacit: Command) -> None:
    answer = tacit("plan", "train.py", "--profile", "hand.toml", "--target-loss", "0.3", "--", "--fail-at", "1")
    assert answer.exit_code == 2 and "train.py, line" in answer.errors and "the data ended" in answer.errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('strategy = "LocalSDG()"', "plan.toml: unknown strategy 'LocalSDG'"),
        ('strategy = "AllReduce()"\nranks = 3', "plan.toml: ranks=3 must be a list"),
        ("strategy = ", "plan plan.toml is not TOML"),
        ('strategy = "AllReduce()"\nworkers = "two"', "plan.toml: workers='two' must be a whole number"),
    ],
)
def test_errors_of_a_broken_plan_name_the_file(tacit: Command, text: str, message: str) -> None:
    Path("plan.toml").write_text(text)
    for command in ("simulate", "train"):
        answer = tacit(command, "--plan", "plan.toml")
        assert answer.exit_code == 2 and message in answer.errors


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('bandwidth = "20 parsecs"', "hand.toml: '20 parsecs' must be a rate such as 1Gbit/s"),
        ('latency = "1ms"\nlatency_s = 0.001', "hand.toml: latency and latency_s are the same setting"),
        ('bandwith = "20Mbit/s"', "table [cluster]: unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ("latency = 0.001", "hand.toml: latency=0.001 must be a text with a unit, or write latency_s"),
        ('compute = "30 parsecs"', "hand.toml: compute='30 parsecs': '30 parsecs' must be a time such as 0.1ms"),
        ('compute = "Constant(mean_s=-1)"', "hand.toml: Constant(mean_s=-1)"),
    ],
)
def test_an_impossible_profile_is_refused_by_name(tacit: Command, line: str, message: str) -> None:
    Path("hand.toml").write_text(f"[cluster]\nworkers = 2\n{line}\n")
    answer = tacit("plan", "--profile", "hand.toml")
    assert answer.exit_code == 2 and message in answer.errors


def test_a_profile_without_the_header_of_its_table_is_told_where_it_belongs(tacit: Command) -> None:
    Path("hand.toml").write_text("workers = 2\n")
    answer = tacit("plan", "--profile", "hand.toml")
    assert (
        answer.exit_code == 2 and "hand.toml: unknown key 'workers'; write it beneath a line [cluster]" in answer.errors
    )
