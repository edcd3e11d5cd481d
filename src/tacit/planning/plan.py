"""The result of planning: rows of candidates with predicted times, the best one, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import TacitError, require
from tacit.planning.pace import Pace
from tacit.planning.results import Interval, Trial
from tacit.profiles.profile import Profile
from tacit.record.files import toml_text, write_text
from tacit.record.run import number
from tacit.session.planned import Planned
from tacit.strategies import Strategy
from tacit.workloads.workload import Workload

if TYPE_CHECKING:
    from tacit.planning.maps.result import PlanMap

FORMAT: Final = 1
GAIN: Final = 0.1
"""The least gain over DDP, as a share of its time, for which a plan recommends another strategy."""
NO_TIME: Final = "no time left in the budget"
STOPPED: Final = "stopped"
"""How the remark of a row begins whose simulation the budget did not allow, or ended."""
SIMULATED, PILOTED, PACE_ONLY = "A", "B", "C"
_BULKY: Final = ("curve", "alternatives", "rounds")
"""Parts of the prediction that are in plan.json only."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate of a plan.

    - ``ranks``: the workers of the profile that take part.
    - ``pace``: seconds and bytes per step, and shares of time.
    - ``time_s``: predicted time to the target with the user's settings; None: not reached, or not simulated.
    - ``best_time_s``, ``best_lr``: the same at the best learning rate that was tried.
    - ``loss``, ``best_loss``: likewise for a plan with ``within_s``, the loss after that time instead of a time.
    - ``bytes_to_target``: of all workers, at the best learning rate.
    - ``fidelity``: "A" gradients were simulated; "B" by the ratio of short real runs; "C" only the pace is known.
    - ``relative``: by a pilot, the time to an equal loss in times of that of DDP on all workers.
    - ``remark``: why there is no time.
    """

    strategy: Strategy[Any]
    ranks: tuple[int, ...]
    pace: Pace
    fidelity: str
    time_s: Interval | None = None
    best_time_s: Interval | None = None
    best_lr: float | None = None
    loss: Interval | None = None
    best_loss: Interval | None = None
    bytes_to_target: float | None = None
    relative: Interval | None = None
    memory_bytes: int | None = None
    trials: tuple[Trial, ...] = ()
    is_kept: bool = False
    remark: str = ""

    @property
    def shortest_s(self) -> Interval | None:
        """The better of the two predicted times; of a row that was not tuned, the one at the user's rate."""
        return self.outcome if self.loss is None and self.best_loss is None else None

    @property
    def outcome(self) -> Interval | None:
        """``shortest_s``, or the lowest loss in a plan with ``within_s``; None: not reached, or not simulated."""
        known = [one for one in (self.time_s, self.best_time_s, self.loss, self.best_loss) if one is not None]
        return min(known, key=lambda one: one.rank, default=None)

    @property
    def is_tuned(self) -> bool:
        """Whether ``outcome`` is that at the best learning rate."""
        return self.outcome is not None and self.outcome in (self.best_time_s, self.best_loss)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """A plan: candidates in the order of their means over seeds.

    - ``best``: the row to run. It is the baseline, DDP on all workers, unless another row is faster by at least 10 %
      and the ranges of the two do not overlap. Of several such rows it is the one with the smallest mean among those
      that were simulated with all seeds.
    - ``ties``: other rows which may be as fast.
    - ``why``: the reason in a sentence.
    - ``lr``: None for a script, which chooses its own.
    - ``prices``: those of the objective "cost".
    - ``notes``: what pilots showed.
    """

    profile: Profile
    workload: Workload
    rows: Sequence[Row]
    target_loss: float | None
    within_s: float | None
    lr: float | None
    objective: str
    best: Row
    baseline: Row
    why: str
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False
    is_interrupted: bool = False

    def __repr__(self) -> str:
        found, outcome = "", self.best.outcome
        if outcome is not None:
            found = f" in {outcome.median:.3g} s" if self.within_s is None else f", loss {outcome.median:.3g}"
        return f"<Plan: {self.best.strategy} on ranks {list(self.best.ranks)}{found}. {self.why}>"

    @property
    def stays_with_ddp(self) -> bool:
        """Whether the plan recommends no change."""
        return self.best is self.baseline

    @property
    def ties(self) -> list[Row]:
        """Rows besides the best whose median lies in its range: as good, as far as the plan can tell."""
        ours = self.best.outcome
        if ours is None:
            return []
        known = [(row.outcome, row) for row in self.rows if row is not self.best]
        return [row for theirs, row in known if theirs is not None and ours.low <= theirs.median <= ours.high]

    def what_if(self, *, bandwidth: float = 1.0, latency: float = 1.0, compute: float = 1.0) -> Plan:
        """Return the plan for another network; ``bandwidth=0.2`` is a fifth of the profile's bandwidth.

        Steps to the target are those of this plan. Only paces are simulated again, which takes milliseconds.
        """
        from tacit.planning.what_if import changed_plan, scaled  # it needs this module

        require(
            self.within_s is None,
            "what_if compares times to a target; make the plan with target_loss, or a plan with within_s for a "
            "profile of the other network.",
        )
        return changed_plan(self, scaled(self.profile, bandwidth=bandwidth, latency=latency, compute=compute))

    @cached_property
    def prediction(self) -> dict[str, Any]:
        """What is predicted for a run of the best row: times, shares, rounds, and the loss curve."""
        from tacit.planning.prediction import prediction_of  # it needs this module

        return prediction_of(self)

    def map(self, **axes: Sequence[float]) -> PlanMap:
        """Return which strategy is fastest where: ``plan.map(bandwidth=(1e6, 1e9), latency=(1e-4, 0.01))``.

        Two axes, each low, high and maybe a count, at equal ratios: bandwidth (bytes/s), latency (s), compute (factor
        of all compute times), slow (factor of the last worker's). Only candidates that reached the target in this plan
        are compared; ``tacit.plan_map`` plans for the whole map.
        """
        from tacit.planning.maps.plan_map import map_of_plan  # it needs this module

        return map_of_plan(self, axes)

    def as_planned(self) -> Planned:
        """Return the best strategy with the plan's assumptions and predictions, for ``tacit.attach``."""
        from tacit.planning.files import planned_of  # it needs this module

        return planned_of(self.table(), self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return the plan as the table of plan.json."""
        return {
            "format": FORMAT,
            "target_loss": self.target_loss,
            "within_s": self.within_s,
            "objective": self.objective,
            "lr": self.lr,
            "settings": dict(self.settings),
            "prices": dict(self.prices),
            "best": self.rows.index(self.best),
            "ties": [self.rows.index(row) for row in self.ties],
            "baseline": self.rows.index(self.baseline),
            "stays_with_ddp": self.stays_with_ddp,
            "why": self.why,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "budget_was_spent": self.is_cut,
            "was_interrupted": self.is_interrupted,
            "rows": [_row_table(row) for row in self.rows],
            "skipped": dict(self.skipped),
            "prediction": self.prediction,
            "profile": self.profile.table(),
        }

    def table(self) -> dict[str, Any]:
        """Return what a run needs, as the table of plan.toml: the strategy, who takes part, and the prediction."""
        best, lr = self.best, self.best.best_lr
        return {
            "strategy": str(best.strategy),
            "workers": len(best.ranks),
            "ranks": list(best.ranks),
            "why": self.why,
            **({"lr": lr} if lr is not None and lr != self.lr and best.is_tuned else {}),
            "predicted": {name: value for name, value in self.prediction.items() if name not in _BULKY},
            **({"settings": dict(self.settings)} if self.settings else {}),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write plan.toml to ``path``, and everything else beside it: a JSON file and a page of the same name."""
        target = Path(path)
        if target.suffix != ".toml":
            raise TacitError(f"{target} must end in .toml; try {target.with_suffix('.toml')}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        comment = "The strategy that tacit plan recommends. tacit train --plan reads it; tacit.attach does too."
        write_text(target, toml_text(self.table(), comment=f"{comment}{_difference(self)}"))
        write_text(target.with_suffix(".json"), json.dumps(self.as_json(), indent=1) + "\n")
        self.write_page(target.with_suffix(".html"))
        return target

    def write_page(self, path: str | os.PathLike[str]) -> Path:
        """Write the page about the plan, one HTML file that loads nothing else, to ``path``."""
        from tacit.report.plans.plan_page import write_plan_page  # it loads plotly

        return write_plan_page(self.as_json(), path)


def _difference(plan: Plan) -> str:
    """Return a line about times in plan.toml that differ from those of the row; empty if none does."""
    from tacit.planning.prediction import runs_otherwise  # it needs this module

    if not runs_otherwise(plan.best):
        return ""
    row_s, run_s = plan.best.pace.step_s, plan.prediction["step_s"]
    return (
        f"\nTimes under [predicted] are those of DDP as tacit runs it, without overlap of rounds and backward pass: "
        f"{1e3 * run_s:.3g} ms a step. The table of the plan has DDP with overlap: {1e3 * row_s:.3g} ms a step."
    )


def _row_table(row: Row) -> dict[str, Any]:
    return {
        "strategy": str(row.strategy),
        "ranks": list(row.ranks),
        "fidelity": row.fidelity,
        "pace": row.pace.table(),
        "time_s": None if row.time_s is None else asdict(row.time_s),
        "best_time_s": None if row.best_time_s is None else asdict(row.best_time_s),
        "best_lr": row.best_lr,
        "loss": None if row.loss is None else asdict(row.loss),
        "best_loss": None if row.best_loss is None else asdict(row.best_loss),
        "bytes_to_target": row.bytes_to_target,
        "relative": None if row.relative is None else asdict(row.relative),
        "memory_bytes": row.memory_bytes,
        "trials": [_trial_table(trial) for trial in row.trials],
        "remark": row.remark,
        "is_kept": row.is_kept,
    }


def _trial_table(trial: Trial) -> dict[str, Any]:
    """Return a trial without its curve, which only the prediction of the best row has."""
    table = {name: value for name, value in asdict(trial).items() if name != "curve"}
    return table | {"best_loss": number(trial.best_loss)}
