"""Runs of ``tacit train --plan``: the plan that a worker follows, and its lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tacit.cli.screens.terminal import is_live, print_line
from tacit.planning.files import read_plan
from tacit.registry.tables import Table
from tacit.session.planned import Planned
from tacit.strategies import Strategy

_EVERY_S: Final = 10.0


class PlanDisplay:
    """Prints a line of progress every ten seconds, on a terminal or with --progress, and all drifts."""

    def __init__(self, console: Console, *, always: bool) -> None:
        self._console = console
        self.every_s = _EVERY_S if is_live(console) or (always and not console.quiet) else None

    def progress(self, text: str) -> None:
        print_line(self._console, text)

    def drift(self, text: str) -> None:
        print_line(self._console, text)


def planned_run(train: Table, strategy: Strategy[Any], folder: Path, display: PlanDisplay) -> Planned:
    """Return the plan of a run with this table ``train``, or the strategy alone without a plan that applies."""
    if next(_why_not(train, strategy), None) is not None or "plan" not in train:
        return Planned(strategy)
    return replace(read_plan(Path(train["plan"])), strategy=strategy, display=display, folder=str(folder))


def plan_notes(train: Table, strategy: Strategy[Any], workers: int) -> list[str]:
    """Return a note if a run has a plan whose prediction does not apply to it."""
    notes = list(_why_not(train, strategy))
    if notes or "plan" not in train:
        return notes
    planned = read_plan(Path(train["plan"])).workers
    if planned not in (None, workers):
        return [f"{train['plan']} is for workers={planned} and the run has {workers}: its times differ from the plan."]
    return []


def _why_not(train: Table, strategy: Strategy[Any]) -> Iterator[str]:
    if "plan" not in train:
        return
    path = Path(train["plan"])
    if not path.exists():
        yield f"{path} does not exist any more; the run is not compared with its plan."
    elif str(read_plan(path).strategy) != str(strategy):
        yield f"{path} is a plan for {read_plan(path).strategy}; the run is not compared with it."
