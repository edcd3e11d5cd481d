"""Strategies that a plan recommends: given to ``tacit.attach`` as a plan, or as the path of plan.toml."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tacit.core.strategy import Strategy
from tacit.record.run import Run
from tacit.session.plan_watch.display import Display
from tacit.session.plan_watch.drift import Drift


@dataclass(frozen=True)
class Planned:
    """A strategy, and what its plan assumes and predicts; both are empty for a strategy without a plan.

    - ``predicted``: the table that becomes ``run.predicted``.
    - ``replan``: returns in a sentence what a new plan would choose after a drift. It runs in a thread of its own.
    - ``ended``: called on rank 0 with a run that has finished.
    - ``display``: where lines about the run are shown; None: on a terminal, and in the log.
    - ``folder``: of the run, for the command that plans again.
    """

    strategy: Strategy[Any]
    workers: int | None = None
    lr: float | None = None  # None: the user's own
    predicted: Mapping[str, Any] = field(default_factory=dict)
    replan: Callable[[Drift], str | None] | None = None
    ended: Callable[[Run], None] | None = None
    display: Display | None = None
    folder: str = "RUN"

    def as_planned(self) -> Planned:
        """Return this, so that it can be attached like a plan."""
        return self

    def remarks(self, workers: int, lr: float) -> Iterator[str]:
        """Yield a sentence for each assumption of the plan that does not hold in this run."""
        if self.workers is not None and self.workers != workers:
            yield f"the plan is for {_workers(self.workers)} and this run has {workers}; its predictions do not apply."
        if self.lr is not None and self.lr != lr:
            yield f"the plan is for lr={self.lr:g} and the optimizer has lr={lr:g}; the predicted time does not apply."


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


class Plan(Protocol):
    """What ``tacit.plan`` returns."""

    def as_planned(self) -> Planned:
        """Return the strategy of the best row."""


_read_plan: Callable[[Path], Planned] | None = None


def set_plan_reader(read: Callable[[Path], Planned]) -> None:
    """Set the function that reads plan.toml; the planner, which this package must not import, calls it."""
    global _read_plan
    _read_plan = read


def planned(given: object) -> Planned:
    """Return the strategy that was given by itself, by a plan, or by the path of a plan.

    A plan is an object with ``best.strategy``, such as ``tacit.plan`` returns.
    """
    if isinstance(given, Strategy):
        return Planned(given)
    as_planned = getattr(given, "as_planned", None)
    if callable(as_planned):
        found: Planned = as_planned()
        return found
    if isinstance(given, str | os.PathLike) and Path(given).suffix == ".toml" and _read_plan is not None:
        return _read_plan(Path(given))
    hint = f' To read it from text, use tacit.strategy("{given}").' if isinstance(given, str) else ""
    raise TypeError(f"strategy={given!r} must be a strategy; try tacit.LocalSGD().{hint}")
