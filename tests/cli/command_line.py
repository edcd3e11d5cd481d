"""The command line, run in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import typer.testing

from tacit.cli import app


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended; ``errors`` without the terminal's line breaks."""

    exit_code: int
    output: str
    errors: str


Command = Callable[..., Answer]
built = functools.cache(typer.main.get_command)  # typer builds all commands anew at each call, which takes 50 ms


def run(*arguments: str) -> Answer:
    """Run ``tacit`` with ``arguments``; ``compare`` in this process, unless they have --jobs."""
    if arguments[:1] == ("compare",) and "--jobs" not in arguments:
        arguments = ("compare", "--jobs", "1", *arguments[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", built)
        result = typer.testing.CliRunner().invoke(app, list(arguments), prog_name="tacit")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, " ".join(result.stderr.split()))
