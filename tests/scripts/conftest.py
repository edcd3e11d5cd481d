"""Lets the tests of this folder play scripts in both worlds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.both_worlds import Outcome, play_in_both


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that plays a script in both worlds and returns what its ranks told."""
    return lambda text, size=2: play_in_both(tmp_path, text, size)
