"""A slice of ``make bench-kills``: workers that are killed at random moments resume, and end with equal bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.processes import Module

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_runs_killed_at_random_moments_resume_exactly(tmp_path: Path):
    words = (
        "--kills",
        "2",
        "--only",
        "overlapped",
        "--seed",
        "1",
        "--folder",
        str(tmp_path),
        "--out",
        f"{tmp_path}/out",
    )
    with Module("benchmarks.kills", *words, folder=ROOT) as benchmark:
        code, output, errors = benchmark.end(100)
    assert code == 0, output + errors
    found = json.loads((tmp_path / "out").read_text())["families"]["overlapped"]
    assert found["kills"] == 2 and found["errors"] == []
    assert found["resumed"] == found["resumed_at_the_checkpoint_found"] > 0
    assert found["runs_that_reached_the_end"] == found["ends_equal_to_the_undisturbed_run"] > 0
