"""What a plan is asked for, whether for a workload or for a script."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from tacit.compare.start import executed
from tacit.compare.tasks import Work
from tacit.compare.watcher import Watcher
from tacit.planning.ledger import Ledger
from tacit.planning.search import Scope, Search
from tacit.planning.verdict import Objective
from tacit.profiles.profile import Profile
from tacit.registry.tables import parsed
from tacit.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for, whether a workload or a script is planned."""

    profile: Profile
    target_loss: float | None
    within_s: float | None
    objective: Objective
    budget_s: float
    strategies: Sequence[Strategy[Any]] | None
    own: Strategy[Any] | None
    seeds: Sequence[int]
    threads: int
    jobs: int | None
    executor: str | Executor
    cache: str | None
    ledger: Ledger
    watcher: Watcher
    pilot: bool = False

    @property
    def has_goal(self) -> bool:
        """Whether losses are asked for, not only paces."""
        return self.target_loss is not None or self.within_s is not None

    def scope(self, lr: float | None, steps: int, *, tunes: bool) -> Scope:
        """Return what is searched."""
        return Scope(
            lr=lr,
            seeds=self.seeds,
            steps=steps,
            target_loss=self.target_loss,
            within_s=self.within_s,
            budget_s=self.budget_s,
            tunes=tunes,
        )

    def carry_out(self, work: Work, search: Search, device: str = "cpu") -> tuple[bool, list[str]]:
        """Make the simulations; return whether Ctrl-C ended them early, and notes on how they were made."""
        execution, notes = executed(
            work, search, self.watcher, (), executor=self.executor, jobs=self.jobs, device=device, runs=None
        )
        return execution.is_interrupted, notes


def strategy_of(name: str, given: Strategy[Any] | str) -> Strategy[Any]:
    """Return a strategy that was given as such or as text."""
    if isinstance(given, str):
        found: Strategy[Any] = parsed(name, given, "strategies")
        return found
    if not isinstance(given, Strategy):
        raise TypeError(f"{name}={given!r} must be a strategy or its text, such as LocalSGD(period=Every(8)).")
    return given
