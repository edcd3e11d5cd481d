"""Why a run took another time than its plan predicted: computing, hooks, wire, waiting, and convergence.

With N steps measured and part p of a step planned to take p_s seconds:

    computing, hooks, waiting   seconds of a worker, mean over all that could report, less N · p_s
    wire                        the rest of the measured time, less N · wire_s
    convergence                 N · step_s less the planned time: more or fewer steps than planned

The five differences add up to measured time less planned time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.record.reaching import row_reaching
from tacit.record.run import Run
from tacit.record.trace import CANCELLED, COMPUTE, HOOK, WAIT
from tacit.report import units

PARTS: Final = ("computing", "hooks", "wire", "waiting")
CONVERGENCE: Final = "convergence"
_KINDS: Final = {"computing": (COMPUTE, CANCELLED), "hooks": (HOOK,), "waiting": (WAIT,)}


@dataclass(frozen=True)
class Cause:
    """One part of the time. planned_s: at the planned pace, for as many steps as were measured."""

    name: str
    planned_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Seconds longer than planned."""
        return self.measured_s - self.planned_s


@dataclass(frozen=True)
class PlannedRun:
    """A run and its plan, up to the target loss if the run reached it, otherwise as a whole.

    low_s, high_s: the range of the plan; None: it has none for this time. planned_steps: None if the plan has none.
    """

    run: Run
    target_loss: float | None  # None: not reached, or not planned
    steps: int
    planned_steps: int | None
    planned_s: float
    measured_s: float
    low_s: float | None
    high_s: float | None
    causes: tuple[Cause, ...]

    @property
    def difference_s(self) -> float:
        """Seconds longer than planned."""
        return self.measured_s - self.planned_s

    def __str__(self) -> str:
        measured, planned = units.seconds(self.measured_s), units.seconds(self.planned_s)
        number, _, unit = planned.partition(" ")
        shown = number if measured.endswith(f" {unit}") else planned
        if self.low_s is not None and self.high_s is not None:
            span = units.between(self.low_s, self.high_s, units.seconds)
            shown += f" ({span.removesuffix(f' {unit}')})" if span else ""
        parts = ", ".join(f"{signed_share(one.difference_s, self.planned_s)} {one.name}" for one in self.causes)
        where = f"{self.steps:,} steps" if self.target_loss is None else f"loss {units.target(self.target_loss)}"
        return f"{where} took {measured}, planned {shown}: {parts}."

    def table(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {
            "target_loss": self.target_loss,
            "planned_s": self.planned_s,
            "measured_s": self.measured_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "steps": self.steps,
            "planned_steps": self.planned_steps,
            "causes": {
                one.name: {
                    "planned_s": one.planned_s,
                    "measured_s": one.measured_s,
                    "difference_s": one.difference_s,
                }
                for one in self.causes
            },
        }


def planned_run(run: Run) -> PlannedRun | None:
    """Return the run next to its plan; None if it has no plan, or took no step."""
    predicted = run.predicted
    if "computing_s" not in predicted:
        return None
    target, time_s = predicted.get("target_loss"), predicted.get("time_median_s")
    reached = None if target is None or time_s is None else row_reaching(run, target)
    if reached is not None and time_s is not None:
        steps, measured_s = int(reached["step"]), float(reached["time_s"])
        planned_s = float(time_s)
        low_s, high_s = predicted.get("time_low_s"), predicted.get("time_high_s")
    else:
        summary = run.summary()
        steps, measured_s, target, low_s, high_s = summary["steps"], summary["time_s"], None, None, None
        planned_s = steps * predicted["step_s"]
    if not steps or measured_s <= 0:
        return None
    spent = _spent(run, measured_s)
    causes = [Cause(name, steps * predicted[f"{name}_s"], spent[name]) for name in PARTS]
    causes.append(Cause(CONVERGENCE, planned_s, steps * predicted["step_s"]))
    return PlannedRun(run, target, steps, predicted.get("steps"), planned_s, measured_s, low_s, high_s, tuple(causes))


def _spent(run: Run, until_s: float) -> dict[str, float]:
    """Return the seconds of a worker by what they were spent on; they add up to ``until_s``.

    They are means over all workers whose numbers the run has.
    """
    workers = run.workers - len(run.missing_workers)
    found = {name: _seconds(run, kinds, until_s) / workers for name, kinds in _KINDS.items()}
    return {**found, "wire": until_s - sum(found.values())}


def _seconds(run: Run, kinds: Sequence[str], until_s: float) -> float:
    total = 0.0
    for kind in kinds:
        ranks, starts_s, ends_s = run.trace.unordered(("rank", "start_s", "time_s"), kind)
        lengths = np.minimum(ends_s, until_s) - np.minimum(starts_s, until_s)
        total += float(lengths[ranks >= 0].sum())
    return total


def signed_share(part: float, whole: float) -> str:
    """Return a share with its sign: "+3 %", "−1 %", "0 %"."""
    percent = round(100 * part / whole) if whole else 0
    return f"{'+' if percent > 0 else '−' if percent < 0 else ''}{abs(percent)} %"
