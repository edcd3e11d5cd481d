"""``tacit.plan``: predict which strategy reaches a loss first on a measured cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from tacit.compare.runners import LOCAL, check_executor
from tacit.compare.watcher import Watcher
from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.planning.candidates import candidates
from tacit.planning.ledger import Ledger
from tacit.planning.making.request import Request, strategy_of
from tacit.planning.making.rows import Rows, made_plan
from tacit.planning.pace import paces
from tacit.planning.pilots.job import PilotJob
from tacit.planning.plan import Plan
from tacit.planning.scripts.planner import plan_script
from tacit.planning.search import Search
from tacit.planning.verdict import Objective
from tacit.planning.work import PlanWork
from tacit.profiles.profile import Profile
from tacit.registry.tables import parsed
from tacit.strategies import Strategy
from tacit.training.schedules import Schedule
from tacit.workloads.workload import Workload

_EVALUATE_EVERY: Final = 5
_STEPS: Final = 2000
OBJECTIVES: Final = ("time", "bytes", "cost")


@with_python_numbers
def plan(
    profile: Profile,
    workload: Workload | str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    target_loss: float | None = None,
    within_s: float | None = None,
    objective: str = "time",
    price_per_worker_hour: float = 0.0,
    price_per_gigabyte: float = 0.0,
    budget_s: float = 300.0,
    pilot: bool = False,
    strategies: Sequence[Strategy[Any] | str] | None = None,
    own: Strategy[Any] | str | None = None,
    tune: bool = True,
    steps: int | None = None,
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

    workload: a workload, or the path of a training script, which runs unmodified with ``arguments``. Losses are then
    those that it passes to ``session.observe``. Model and optimizer are the script's, so ``tune``, ``optimizer`` to
    ``schedule``, ``evaluate_every``, ``engine`` and ``device`` do not apply.
    within_s: instead of a target, compare the losses after this time. Without either, only paces are predicted.
    objective: "time", "bytes", or "cost" with the given prices.
    budget_s: no further simulations start after this time.
    pilot: run DDP and up to three of the best strategies on real processes of this machine for a short time, to check
    how their losses fall; as many processes as they have workers.
    strategies: those to consider besides DDP, also as text; None: the usual ones. own: the strategy that the user has
    today; None: for a script its own.
    tune: also try other learning rates, for the second column of the plan.
    steps: the largest number of steps of a simulated training; None: 2000, or for a script until it ends.
    jobs, executor: as in ``tacit.compare``. cache: folder of loss curves, which do not depend on the network.

    A strategy with rounds is simulated once with gradients, and its pace separately: time to target = steps × pace.
    """
    seeds = list(seeds)
    _check(profile, target_loss, within_s, objective, budget_s, steps, seeds)
    for name, price in (("price_per_worker_hour", price_per_worker_hour), ("price_per_gigabyte", price_per_gigabyte)):
        require(0 <= price < math.inf, f"{name}={price:g} must be a price, at least 0.")
    require(
        objective != "cost" or price_per_worker_hour > 0 or price_per_gigabyte > 0,
        "objective='cost' needs price_per_worker_hour or price_per_gigabyte, or both.",
    )
    require(within_s is None or not pilot, "pilot=True checks times to a loss; give target_loss instead of within_s.")
    check_executor(executor, jobs)
    request = Request(
        profile=profile,
        target_loss=target_loss,
        within_s=within_s,
        objective=Objective(
            name=objective, price_per_worker_hour=price_per_worker_hour, price_per_gigabyte=price_per_gigabyte
        ),
        budget_s=budget_s,
        strategies=None if strategies is None else [strategy_of("strategies", one) for one in strategies],
        own=None if own is None else strategy_of("own", own),
        seeds=seeds,
        threads=threads,
        jobs=jobs,
        executor=executor,
        cache=cache,
        ledger=ledger or Ledger(),
        watcher=watcher or Watcher(),
        pilot=pilot,
    )
    if not isinstance(workload, Workload):
        return plan_script(request, workload, arguments, steps)
    settings = {
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "engine": engine,
        "device": device,
    }
    return _plan_workload(request, workload, settings, lr, _STEPS if steps is None else steps, evaluate_every, tune)


def _plan_workload(
    request: Request,
    workload: Workload,
    settings: dict[str, Any],
    lr: float,
    steps: int,
    evaluate_every: int,
    tune: bool,
) -> Plan:
    profile = request.profile
    found = candidates(profile, request.own, request.strategies)
    drawn = {one: paces(workload, one.strategy, profile.of_ranks(one.ranks).cluster()) for one in found}
    search = Search(found, drawn, request.scope(lr, steps, tunes=tune))
    warnings, is_interrupted = [*profile.warnings, *_differences(profile, workload)], False
    if request.has_goal:
        work = PlanWork(
            workload, profile, settings, evaluate_every, request.target_loss, request.cache, request.threads
        )
        is_interrupted, notes = request.carry_out(work, search, settings["device"])
        warnings += notes
    described = {
        "workload": str(workload),
        **{name: str(value) if isinstance(value, Schedule) else value for name, value in settings.items()},
        "seeds": list(request.seeds),
        "steps": steps,
    }
    rows = Rows(profile, search, drawn, lr, request.ledger)
    within = f" within {steps} steps"
    job = _pilot_job(workload, settings, lr, evaluate_every, request.threads) if request.pilot else None
    return made_plan(
        request,
        workload,
        rows,
        described,
        warnings=warnings,
        is_interrupted=is_interrupted,
        within=within,
        pilot=job,
    )


def _pilot_job(workload: Workload, settings: dict[str, Any], lr: float, evaluate_every: int, threads: int) -> PilotJob:
    """Return the job of pilots, which other processes make from texts."""
    schedule = settings["schedule"]
    texts = {"workload": str(workload), **({} if schedule is None else {"schedule": str(schedule)})}
    for name, text in texts.items():
        try:
            parsed(name, text, f"{name}s")
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"pilot=True needs a {name} that other processes can make from its text, and {text} cannot be read; "
                f"define it in a module, or leave out the pilot."
            ) from error
    names = ("optimizer", "momentum", "weight_decay")
    own = {**{name: settings[name] for name in names}, "lr": lr, "evaluate_every": evaluate_every}
    return PilotJob(workload=texts["workload"], schedule=texts.get("schedule"), settings=own, threads=threads)


def _check(
    profile: object,
    target_loss: float | None,
    within_s: float | None,
    objective: str,
    budget_s: float,
    steps: int | None,
    seeds: Sequence[int],
) -> None:
    if not isinstance(profile, Profile):
        raise TypeError(f"profile={profile!r} must be a profile; try tacit.Profile.load('profile').")
    require(target_loss is None or within_s is None, "give target_loss or within_s, not both.")
    require(within_s is None or within_s > 0, f"within_s={within_s} must be positive.")
    require(objective in OBJECTIVES, f"objective={objective!r} must be one of {', '.join(OBJECTIVES)}.")
    require(
        within_s is None or objective == "time",
        f"within_s={within_s} compares losses; objective={objective!r} needs target_loss instead.",
    )
    require(
        target_loss is not None or objective == "time",
        f"objective={objective!r} compares what it takes to reach a loss; add target_loss.",
    )
    require(budget_s > 0, f"budget_s={budget_s} must be positive; 300 are five minutes.")
    require(steps is None or steps >= 1, f"steps={steps} must be at least 1.")
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
