"""``tacit.plan``: predict which strategy reaches a loss first on a measured cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final

from tacit.compare.runners import LOCAL, check_executor
from tacit.compare.start import executed
from tacit.compare.watcher import Watcher
from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.planning.candidates import Candidate, candidates
from tacit.planning.ledger import Ledger
from tacit.planning.memory import memory_bytes
from tacit.planning.pace import Pace, mean_pace, paces
from tacit.planning.plan import PACE_ONLY, SIMULATED, Plan, Row
from tacit.planning.results import Interval, Trial
from tacit.planning.search import Scope, Search
from tacit.planning.verdict import Objective, chosen
from tacit.planning.work import PlanWork, is_timed_with_gradients
from tacit.profiles.profile import Profile
from tacit.strategies import Strategy
from tacit.training.schedules import Schedule
from tacit.workloads.workload import Workload

_EVALUATE_EVERY: Final = 5
_FEW_STEPS: Final = 50
"""Targets that are reached sooner are decided by the first steps and by single rounds."""
OBJECTIVES: Final = ("time", "bytes", "cost")


@with_python_numbers
def plan(
    profile: Profile,
    workload: Workload,
    *,
    target_loss: float | None = None,
    within_s: float | None = None,
    objective: str = "time",
    price_per_worker_hour: float = 0.0,
    price_per_gigabyte: float = 0.0,
    budget_s: float = 300.0,
    strategies: Sequence[Strategy[Any]] | None = None,
    own: Strategy[Any] | None = None,
    tune: bool = True,
    steps: int = 2000,
    seeds: Sequence[int] = (0, 1, 2),
    optimizer: str = "sgd",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[int], float] | None = None,
    evaluate_every: int = _EVALUATE_EVERY,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    jobs: int | None = None,
    executor: str | Executor = LOCAL,
    cache: str | None = None,
    ledger: Ledger | None = None,
    watcher: Watcher | None = None,
) -> Plan:
    """Predict the time in which each strategy reaches ``target_loss`` on the cluster of ``profile``; return the plan.

    within_s: instead of a target, compare the losses after this time. Without either, only paces are predicted.
    objective: "time", "bytes", or "cost" with the given prices.
    budget_s: no further simulations start after this time.
    strategies: those to consider besides DDP; None: the usual ones. own: the strategy that the user has today.
    tune: also try other learning rates, for the second column of the plan.
    steps: the largest number of steps of a simulated training.
    jobs, executor: as in ``tacit.compare``. cache: folder of loss curves, which do not depend on the network.

    A strategy with rounds is simulated once with gradients, and its pace separately: time to target = steps × pace.
    """
    _check(profile, target_loss, within_s, objective, budget_s, steps, seeds)
    check_executor(executor, jobs)
    everyone = tuple(range(profile.workers))
    found = candidates(profile, own, strategies)
    drawn = {one: paces(workload, one.strategy, profile.of_ranks(one.ranks).cluster()) for one in found}
    scope = Scope(
        lr=lr,
        seeds=seeds,
        steps=steps,
        target_loss=target_loss,
        within_s=within_s,
        budget_s=budget_s,
        tunes=tune,
    )
    settings = {
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "engine": engine,
        "device": device,
    }
    search = Search(found, drawn, scope)
    warnings = [*profile.warnings, *_differences(profile, workload)]
    if target_loss is not None or within_s is not None:
        work = PlanWork(workload, profile, settings, evaluate_every, target_loss, cache, threads)
        _, notes = executed(
            work,
            search,
            watcher or Watcher(),
            (),
            executor=executor,
            jobs=jobs,
            device=device,
            is_single=False,
        )
        warnings += notes
    goal = Objective(name=objective, price_per_worker_hour=price_per_worker_hour, price_per_gigabyte=price_per_gigabyte)
    made = _Rows(profile, search, drawn, lr, ledger or Ledger())
    rows = sorted(map(made.row, found), key=lambda row: (goal.value(row), row.pace.step_s))
    baseline = next(row for row in rows if row.is_kept and row.ranks == everyone and str(row.strategy) == "DDP()")
    target = f"the loss {target_loss:g} within {steps} steps" if target_loss is not None else f"{within_s} s"
    best, why = chosen(rows, baseline, profile, goal, target)
    reached = [trial.steps for trial in best.trials if trial.steps is not None]
    if target_loss is not None and reached and min(reached) < _FEW_STEPS:
        warnings.append(
            f"The loss is reached after {min(reached)} steps. Plans are meant for {_FEW_STEPS} steps and more: before "
            f"its first round a strategy does not communicate at all."
        )
    if search.is_cut:
        warnings.append(
            f"The budget of {budget_s:g} s was spent before all simulations were made; a larger one makes more."
        )
    return Plan(
        profile=profile,
        workload=workload,
        rows=rows,
        target_loss=target_loss,
        within_s=within_s,
        lr=lr,
        objective=objective,
        best=best,
        baseline=baseline,
        why=why,
        warnings=tuple(dict.fromkeys(warnings)),
        settings={
            "workload": str(workload),
            **{name: str(value) if isinstance(value, Schedule) else value for name, value in settings.items()},
            "seeds": list(seeds),
            "steps": steps,
        },
        skipped={f"{one.label}": reason for one, reason in search.skipped.items()},
        is_cut=search.is_cut,
    )


def _check(
    profile: object,
    target_loss: float | None,
    within_s: float | None,
    objective: str,
    budget_s: float,
    steps: int,
    seeds: Sequence[int],
) -> None:
    if not isinstance(profile, Profile):
        raise TypeError(f"profile={profile!r} must be a profile; try tacit.Profile.load('profile').")
    require(target_loss is None or within_s is None, "give target_loss or within_s, not both.")
    require(within_s is None or within_s > 0, f"within_s={within_s} must be positive.")
    require(objective in OBJECTIVES, f"objective={objective!r} must be one of {', '.join(OBJECTIVES)}.")
    require(budget_s > 0, f"budget_s={budget_s} must be positive; 300 are five minutes.")
    require(steps >= 1, f"steps={steps} must be at least 1.")
    require(len(set(seeds)) == len(seeds) >= 1, f"seeds={list(seeds)} must be different; give at least one.")


def _differences(profile: Profile, workload: Workload) -> Iterator[str]:
    """Yield a sentence if the profile was measured with another model than that of the workload."""
    if profile.parameters is None:
        return
    own = sum(p.numel() for p in workload.open(profile.workers, Streams(0)).module.parameters() if p.requires_grad)
    if own != profile.parameters:
        yield (
            f"The profile was measured with {profile.parameters:,} parameters and the workload has {own:,}: its step "
            f"times are those of the other model."
        )


class _Rows:
    """Makes the rows of a plan from the results of a search."""

    def __init__(
        self,
        profile: Profile,
        search: Search,
        paces: Mapping[Candidate, Sequence[Pace]],
        lr: float,
        ledger: Ledger,
    ) -> None:
        self._profile, self._search, self._paces, self._lr, self._ledger = profile, search, paces, lr, ledger

    def row(self, candidate: Candidate) -> Row:
        """Return the row of a candidate."""
        trials, paces = self._search.trials[candidate], list(self._paces[candidate])
        row = Row(
            strategy=candidate.strategy,
            ranks=candidate.ranks,
            pace=mean_pace(paces),
            fidelity=SIMULATED if trials else PACE_ONLY,
            memory_bytes=memory_bytes(candidate.strategy, self._profile),
            trials=tuple(trials),
            is_kept=candidate.is_kept,
            remark=self._remark(candidate, trials),
        )
        if not trials:
            return row
        by_rate = {lr: self._interval(candidate, lr) for lr in sorted({trial.lr for trial in trials})}
        reached = {lr: interval for lr, interval in by_rate.items() if interval is not None}
        if not reached:
            return row
        best_lr = min(reached, key=lambda lr: reached[lr].median)
        is_tuned = len(by_rate) > 1
        return replace(
            row,
            time_s=by_rate.get(self._lr),
            best_time_s=reached[best_lr] if is_tuned else None,
            best_lr=best_lr if is_tuned else None,
            bytes_to_target=self._bytes(trials, best_lr, row.pace),
        )

    def _interval(self, candidate: Candidate, lr: float) -> Interval | None:
        """Return the time to the target over seeds and draws; None unless all seeds reached it."""
        trials = [trial for trial in self._search.trials[candidate] if trial.lr == lr]
        if any(trial.steps is None for trial in trials):
            return None
        times_s = [time_s for trial in trials for time_s in trial.times_s(self._paces[candidate])]
        kind = "asynchronous" if is_timed_with_gradients(candidate.strategy) else "rounds"
        return Interval.of(times_s, self._ledger.widening(kind))

    @staticmethod
    def _bytes(trials: Sequence[Trial], lr: float, own: Pace) -> float | None:
        chosen = [trial for trial in trials if trial.lr == lr and trial.steps is not None]
        sent = [
            trial.bytes_sent if trial.bytes_sent is not None else (trial.steps or 0) * own.bytes_per_step
            for trial in chosen
        ]
        return sum(sent) / len(sent) if sent else None

    def _remark(self, candidate: Candidate, trials: Sequence[Trial]) -> str:
        if candidate in self._search.skipped:
            return self._search.skipped[candidate]
        failed = next((trial.status for trial in trials if trial.status.startswith("failed")), "")
        if failed:
            return failed
        if trials and all(trial.steps is None for trial in trials):
            return f"best loss {min(trial.best_loss for trial in trials):.4g}"
        return ""
