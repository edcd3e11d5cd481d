"""A look at a script before it is planned: its first steps, with two seeds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Constant
from tacit.errors import RunError, TacitError
from tacit.planning.scripts.work import quiet_script
from tacit.record.run import Run
from tacit.registry.tables import parsed
from tacit.simulation.scripts.following import StepOfScript
from tacit.simulation.scripts.run import simulate_compiled
from tacit.simulation.scripts.world import Script
from tacit.strategies import AllReduce, Strategy

_STEPS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the first steps of a script tell.

    own: the script's own strategy; None: it cannot be planned, and ``own_text`` is its text. steps: that the script
    announces to ``attach``. observes: whether it calls ``session.observe``. has_equal_weights: whether all mini-batches
    count alike. uses_seed: whether the seed of a simulation makes a difference, which it does not if the script seeds
    its own generators. step_s: real seconds to simulate a step of one worker.
    """

    own: Strategy[Any] | None
    own_text: str
    sessions: int
    parameters: int
    dtype: str
    steps: int | None
    optimizer: str
    observes: bool
    has_equal_weights: bool
    uses_seed: bool
    step_s: float


class _FirstSteps:
    """Follows the first steps, and ends the run."""

    def __init__(self, workers: int) -> None:
        self._left = _STEPS * workers
        self._latest_s = time.monotonic()
        self.losses: list[float | None] = []
        self.weights: set[float] = set()
        self.steps_s: list[float] = []  # real seconds between two steps of any workers

    def __call__(self, one: StepOfScript) -> bool:
        self.losses.append(one.loss)
        self.weights.add(one.weight)
        now_s = time.monotonic()
        self.steps_s.append(now_s - self._latest_s)
        self._latest_s = now_s
        self._left -= 1
        return self._left <= 0


def look_at(script: Script, workers: int) -> Look:
    """Run the first steps of ``script`` on ``workers`` simulated workers; raise if it fails or has no session."""
    first, run = _first_steps(script, workers, 0)
    other, _ = _first_steps(script, workers, 1)
    text = next(iter(run.record.get("own_strategies", [])), "")
    steps_s = sorted(first.steps_s[workers:]) or [0.0]  # without the first ones, which load data
    return Look(
        own=_readable(text),
        own_text=text,
        sessions=len(run.record["strategies"]),
        parameters=run.record["parameters"],
        dtype=run.record["dtype"],
        steps=run.steps if run.steps > _STEPS else None,
        optimizer=run.record["optimizer"],
        has_equal_weights=len(first.weights) == 1,
        observes=any(loss is not None for loss in first.losses),
        uses_seed=first.losses != other.losses,
        step_s=steps_s[len(steps_s) // 2],
    )


def _first_steps(script: Script, workers: int, seed: int) -> tuple[_FirstSteps, Run]:
    follower = _FirstSteps(workers)
    cluster = Cluster(workers=workers, compute=Constant(mean_s=1.0))
    try:
        with quiet_script():
            run = simulate_compiled(
                script, cluster=cluster, strategy=AllReduce(), seed=seed, measured=False, follower=follower
            )
    except RunError as error:
        raise TacitError(f"{script.path.name} fails in its first steps: {error}") from error
    if "parameters" not in run.record:
        raise TacitError(f"{script.path.name} ended before its first step: there is nothing to plan.")
    return follower, run


def _readable(text: str) -> Strategy[Any] | None:
    """Return the strategy of ``text``; None if its class is defined in the script."""
    try:
        found: Strategy[Any] = parsed("strategy", text, "strategies")
    except (ValueError, TypeError):
        return None
    return found
