"""The committed digests of the conformance table: a change that must not change behaviour leaves them as they are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.strategy_table import TABLE, Row

TOOL = Path(__file__).parent.parent / "tools" / "conformance_digests.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_digests", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_a_digest(tool: ModuleType):
    assert set(json.loads(tool.FILE.read_text())) == {str(row) for row in TABLE}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_run_has_the_committed_digest_and_parameters(tool: ModuleType, row: Row):
    known = json.loads(tool.FILE.read_text())
    assert tool.differences({str(row): tool.digests_of(row)}, {str(row): known[str(row)]}) == [], (
        "python tools/conformance_digests.py rewrites the file; do so only if the change is intended"
    )


def test_differences_are_listed(tool: ModuleType):
    known = {"A()": {"trace": "1", "parameters": "2"}, "B()": {"trace": "1", "parameters": "2"}}
    found = {"A()": {"trace": "3", "parameters": "2"}, "C()": {"trace": "1", "parameters": "2"}}
    lines = ["B(): has no row any more", "A(): trace differ", "C(): is new"]
    assert tool.differences(found, known) == lines


def test_the_last_bits_of_a_loss_do_not_count(tool: ModuleType):
    assert tool.rounded(0.1 + 0.2) == tool.rounded(0.3) != tool.rounded(0.3000001)
    assert tool.rounded(3) == 3 and tool.rounded("step") == "step"
