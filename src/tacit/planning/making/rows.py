"""The rows of a plan, made from the results of a search, and the plan of all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any, Final

from tacit.planning.candidates import Candidate
from tacit.planning.ledger import PRIOR, Ledger, kind_of
from tacit.planning.making.request import Request
from tacit.planning.memory import memory_bytes
from tacit.planning.pace import Pace, mean_pace
from tacit.planning.pilots.finalists import piloted
from tacit.planning.pilots.job import PilotJob
from tacit.planning.plan import PACE_ONLY, SIMULATED, Plan, Row
from tacit.planning.results import Interval, Trial, factor_for_seeds
from tacit.planning.search import Search
from tacit.planning.verdict import chosen
from tacit.profiles.profile import Profile
from tacit.workloads.workload import Workload

_FEW_STEPS: Final = 50
"""Targets that are reached sooner are decided by the first steps and by single rounds."""


class Rows:
    """Makes the rows of a plan from the results of a search."""

    def __init__(
        self,
        profile: Profile,
        search: Search,
        paces: Mapping[Candidate, Sequence[Pace]],
        lr: float | None,
        ledger: Ledger,
    ) -> None:
        """lr: of the user; None for a script."""
        self._profile, self._ledger = profile, ledger
        self.search, self.paces, self.lr = search, paces, lr

    def row(self, candidate: Candidate) -> Row:
        """Return the row of a candidate."""
        trials, paces = self.search.trials[candidate], list(self.paces[candidate])
        row = Row(
            strategy=candidate.strategy,
            ranks=candidate.ranks,
            pace=mean_pace(paces),
            fidelity=SIMULATED if any(_tells(trial) for trial in trials) else PACE_ONLY,
            memory_bytes=memory_bytes(candidate.strategy, self._profile),
            trials=tuple(trials),
            is_kept=candidate.is_kept,
            remark=self._remark(candidate, trials),
        )
        if not trials:
            return row
        by_rate = {lr: self._interval(candidate, lr) for lr in dict.fromkeys(trial.lr for trial in trials)}
        reached = {lr: interval for lr, interval in by_rate.items() if interval is not None}
        if not reached:
            return row
        best_lr = min(reached, key=lambda lr: reached[lr].rank)
        is_tuned = len(by_rate) > 1
        own, best = by_rate.get(self.lr), reached[best_lr] if is_tuned else None
        is_loss = self.search.within_s is not None
        return replace(
            row,
            time_s=None if is_loss else own,
            best_time_s=None if is_loss else best,
            loss=own if is_loss else None,
            best_loss=best if is_loss else None,
            best_lr=best_lr if is_tuned else None,
            bytes_to_target=self._bytes(trials, best_lr, row.pace),
        )

    def _interval(self, candidate: Candidate, lr: float | None) -> Interval | None:
        """Return the time to the target over seeds and draws; None unless all seeds reached it.

        With a time instead of a target: the loss after that time. An error of the time changes it by as large a factor
        at most, if losses fall no faster than the inverse of the time.
        """
        trials = [trial for trial in self.search.trials[candidate] if trial.lr == lr]
        if any(trial.steps is None for trial in trials):
            return None
        if self.search.within_s is None:
            by_seed = [trial.times_s(self.paces[candidate]) for trial in trials]
        else:
            by_seed = [[trial.best_loss] for trial in trials]
        factors = (
            self._ledger.widening(kind_of(candidate.strategy)),
            factor_for_seeds([median(values) for values in by_seed]),
        )
        return Interval.of(chain.from_iterable(by_seed), *factors, seeds=len(by_seed))

    @staticmethod
    def _bytes(trials: Sequence[Trial], lr: float | None, own: Pace) -> float | None:
        chosen = [trial for trial in trials if trial.lr == lr and trial.steps is not None]
        sent = [
            trial.bytes_sent if trial.bytes_sent is not None else (trial.steps or 0) * own.bytes_per_step
            for trial in chosen
        ]
        return sum(sent) / len(sent) if sent else None

    def _remark(self, candidate: Candidate, trials: Sequence[Trial]) -> str:
        if candidate in self.search.skipped:
            return self.search.skipped[candidate]
        ended = next((trial.status for trial in trials if trial.status.startswith(("failed", "stopped"))), "")
        if ended:
            return ended.split("\n")[0]
        if trials and all(trial.steps is None for trial in trials):
            return f"best loss {min(trial.best_loss for trial in trials):.4g} when stopped"
        return ""


def _tells(trial: Trial) -> bool:
    """Whether a trial was not ended by the budget."""
    return not trial.status.startswith("stopped")


def made_plan(
    request: Request,
    workload: Workload,
    made: Rows,
    settings: dict[str, Any],
    *,
    warnings: Sequence[str],
    is_interrupted: bool,
    within: str,
    pilot: PilotJob | None,
) -> Plan:
    """Return the plan of the rows of all candidates. within: how far they were simulated, for messages.

    pilot: short real runs of the finalists; None: none.
    """
    profile, search, goal, target_loss = request.profile, made.search, request.objective, request.target_loss
    rows = sorted(map(made.row, made.paces), key=lambda row: (goal.value(row), row.pace.step_s))
    everyone = tuple(range(profile.workers))
    baseline = next(row for row in rows if row.is_kept and row.ranks == everyone and str(row.strategy) == "DDP()")
    notes: list[str] = []
    if pilot is not None and not is_interrupted:
        done = piloted(rows, baseline, pilot)
        rows = sorted(done.rows, key=lambda row: (goal.value(row), row.pace.step_s))
        notes, is_interrupted = done.remarks, done.is_interrupted
    target = f"the loss {target_loss:g}{within}" if target_loss is not None else f"the end of {request.within_s} s"
    best, why = chosen(rows, baseline, profile, goal, target)
    return Plan(
        profile=profile,
        workload=workload,
        rows=rows,
        target_loss=target_loss,
        within_s=request.within_s,
        lr=made.lr,
        objective=goal.name,
        prices=goal.prices,
        best=best,
        baseline=baseline,
        why=why,
        notes=tuple(notes),
        warnings=tuple(dict.fromkeys([*warnings, *_remarks(request, best, search, is_interrupted=is_interrupted)])),
        settings=settings,
        skipped={f"{one.label}": reason for one, reason in search.skipped.items()},
        is_cut=search.is_cut,
        is_interrupted=is_interrupted,
    )


def _remarks(request: Request, best: Row, search: Search, *, is_interrupted: bool) -> Iterator[str]:
    """Yield sentences about what makes a plan less certain."""
    reached = [trial.steps for trial in best.trials if trial.steps is not None]
    if request.target_loss is not None and reached and min(reached) < _FEW_STEPS:
        yield (
            f"The loss is reached after {min(reached)} steps. Plans are meant for {_FEW_STEPS} steps and more: before "
            f"its first round a strategy does not communicate at all."
        )
    if search.is_cut:
        yield (
            f"The budget of {round(request.budget_s, 1):g} s was spent before all simulations were made; a larger one "
            f"makes more."
        )
    for kind, prior in PRIOR.items():
        if (factor := request.ledger.widening(kind)) > prior:
            strategies = "strategies with rounds" if kind == "rounds" else "servers, gossip and adaptive periods"
            yield (
                f"Earlier runs differed from their plans by a factor of {factor:.3g}, so ranges of {strategies} are "
                f"wider by it. Those runs are in {request.ledger.path}."
            )
    if is_interrupted:
        yield "The search was interrupted: the plan has only what was simulated until then."
