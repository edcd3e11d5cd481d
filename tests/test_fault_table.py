"""The table of faults names evidence for each cell, and the evidence exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "faults.md").read_text()
EVIDENCE = dict(re.findall(r"^(\d+)\. (.*)$", PAGE.partition("## Evidence")[2], re.MULTILINE))


def test_every_cell_names_evidence_or_says_that_there_is_none():
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [(row[0], cell.strip()) for row in rows if row[0] != "fault" for cell in row[1:]]
    assert len(cells) > 50
    named = {number for _, cell in cells for number in re.findall(r"\d+", " ".join(re.findall(r"\(([\d, ]+)\)", cell)))}
    empty = ("not possible", "not tested")
    bare = [(fault, cell) for fault, cell in cells if cell not in empty and not re.search(r"\([\d, ]+\)", cell)]
    assert bare == []
    assert named <= EVIDENCE.keys(), sorted(named - EVIDENCE.keys())


@pytest.mark.parametrize("number", EVIDENCE)
def test_the_evidence_exists(number: str):
    files = re.findall(r"`([^`]+)`", EVIDENCE[number])
    assert files
    for named in files:
        path, _, test = named.partition("::")
        file = ROOT / path if path.startswith("benchmarks") else ROOT / "tests" / path
        assert file.exists(), named
        assert not test or f"\ndef {test}(" in file.read_text(), named
