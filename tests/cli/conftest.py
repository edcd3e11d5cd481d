"""Commands run in an empty folder, on a workload that takes no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import command_line

TINY = ("--workload", "quadratic(dimension=5)", "--workers", "2", "--steps", "12")


@pytest.fixture
def tacit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> command_line.Command:
    """Return a function that runs ``tacit`` with the given arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_line.run


@pytest.fixture
def tiny(tacit: command_line.Command) -> command_line.Command:
    """Return a function that runs a command on the tiny workload."""
    return lambda command, *arguments: tacit(command, *TINY, *arguments)
