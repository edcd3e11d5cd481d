"""plan.json follows its schema, and plan.html shows what plan.json has."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.report.plans.plan_page import render_plan
from tacit.report.plans.plan_rows import pareto_front, recommendation, rows_of
from tests.planning.schema import violations

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SCHEMA: dict[str, Any] = json.loads((REFERENCE / "plan.schema.json").read_text(encoding="utf-8"))
PROFILE = tacit.Profile(
    workers=3,
    compute=tacit.Constant(mean_s=0.02),
    speed={2: 1 / 3},
    bandwidth_bytes_per_s=1e6,
    peak_memory_bytes={0: 3_000_000},
    parameter_bytes=2600,
    warnings=("The <machine> was not steady.",),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real plan, saved."""
    plan = tacit.plan(
        PROFILE,
        tacit.workloads.digits(model="softmax"),
        target_loss=0.9,
        strategies=[tacit.LocalSGD(period=tacit.Every(8))],
        steps=60,
        seeds=[0],
        jobs=1,
    )
    target: Path = tmp_path_factory.mktemp("plan")
    plan.save(target / "plan.toml")
    return target


@pytest.fixture(scope="module")
def table(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return loaded


def test_a_real_plan_follows_the_schema(table: dict[str, Any]) -> None:
    assert list(violations(table, SCHEMA, SCHEMA)) == []


def test_a_plan_of_paces_follows_the_schema() -> None:
    plan = tacit.plan(PROFILE, tacit.workloads.digits(), strategies=[tacit.LocalSGD(period=tacit.Every(4))])
    table = json.loads(json.dumps(plan.as_json(), allow_nan=False))
    assert list(violations(table, SCHEMA, SCHEMA)) == []
    assert "Losses were not simulated" in render_plan(table) or "Stay with DDP" in render_plan(table)


def test_the_validator_finds_missing_unknown_and_wrong_values(table: dict[str, Any]) -> None:
    wrong = copy.deepcopy(table)
    del wrong["why"]
    wrong["rows"][0] |= {"fidelity": "D", "colour": "red"}
    wrong["rows"][0]["time_s"] = {"median": "1"}
    found = "\n".join(violations(wrong, SCHEMA, SCHEMA))
    for words in ("$.why is missing", "fidelity is 'D'", "colour is not in the schema", "time_s fits none"):
        assert words in found


def test_the_schema_and_the_page_about_it_name_the_same_keys() -> None:
    page = (REFERENCE / "plan-file.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([a-z_]+)`", page))
    for one in (SCHEMA, SCHEMA["$defs"]["row"], SCHEMA["$defs"]["pace"], SCHEMA["$defs"]["trial"]):
        assert one["properties"].keys() <= described


def test_the_page_shows_rows_figures_warnings_and_commands(folder: Path, table: dict[str, Any]) -> None:
    page = (folder / "plan.html").read_text(encoding="utf-8")
    head = page[: page.index('id="figures"')]
    assert f"<h1>{recommendation(table)}" in re.sub("<wbr>", "", head)
    assert "The &lt;machine&gt; was not steady." in head and "tacit train --plan plan.toml" in head
    assert head.count("<tr>") == 1 + len(table["rows"])
    assert 'data-figure="times"' in head and 'data-figure="front"' in head and "3.00 MB" in head
    assert not re.search(r'(?:src|href)="https?:', head)


def test_no_row_beats_one_on_the_front_in_time_and_bytes(table: dict[str, Any]) -> None:
    rows = rows_of(table)
    front = [(row.interval["median"], row.table["bytes_to_target"]) for row in pareto_front(rows) if row.interval]
    assert front
    for row in rows:
        if row.interval is not None and (mine := (row.interval["median"], row.table["bytes_to_target"])) not in front:
            assert any(time_s <= mine[0] and sent <= mine[1] for time_s, sent in front)


def test_shares_of_a_step_add_up(table: dict[str, Any]) -> None:
    for row in rows_of(table):
        assert sum(row.shares.values()) == pytest.approx(1.0)


def test_names_say_who_takes_part(table: dict[str, Any]) -> None:
    names = {row.name for row in rows_of(table)}
    assert {"DDP()", "DDP() without worker 2", "worker 0 alone"} <= names
