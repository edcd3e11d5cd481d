"""Plans for a script: a look at its first steps, paces, runs until the target, and the verdict."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tacit.errors import require
from tacit.planning.candidates import Candidate, candidates
from tacit.planning.making.request import Request
from tacit.planning.making.rows import Rows, made_plan
from tacit.planning.pace import paces
from tacit.planning.pilots.job import PilotJob
from tacit.planning.plan import Plan
from tacit.planning.results import Trial
from tacit.planning.scripts.look import Look, look_at
from tacit.planning.scripts.search import ScriptSearch
from tacit.planning.scripts.work import OUT_OF_TIME, ScriptPlanWork
from tacit.planning.sized import Sized
from tacit.simulation.scripts.run import compiled
from tacit.strategies import AllReduce

_NEVER: Final = 10**9
_HETEROGENEOUS: Final = 0.2


def plan_script(request: Request, path: str | os.PathLike[str], arguments: Sequence[str], steps: int | None) -> Plan:
    """Return the plan for the script at ``path``; see ``tacit.plan``."""
    begun_s = time.time()
    profile, script = request.profile, compiled(path, arguments)
    look = look_at(script, profile.workers)
    _check_losses(request, look, script.path.name)
    own = request.own or look.own
    workload = Sized(parameters=look.parameters, dtype=look.dtype)
    found = candidates(profile, own, request.strategies)
    drawn = {one: paces(workload, one.strategy, profile.of_ranks(one.ranks).cluster()) for one in found}
    planned = request if look.uses_seed else replace(request, seeds=request.seeds[:1])
    search = ScriptSearch(
        found,
        drawn,
        planned.scope(None, steps or _NEVER, tunes=False),
        worker_step_s=look.step_s,
        jobs=request.jobs or 1,
        now_s=time.monotonic,
        spent_s=time.time() - begun_s,
        twins=_twins(found, look),
    )
    warnings, is_interrupted = [*profile.warnings, *_differences(request, look)], False
    if request.has_goal:
        until_s = begun_s + request.budget_s
        work = ScriptPlanWork(
            str(script.path),
            tuple(arguments),
            profile,
            request.target_loss,
            until_s,
            request.cache,
            request.threads,
        )
        is_interrupted, notes = request.carry_out(work, search)
        warnings += [*notes, *_failures(search)]
        if (short := _drop_if_baseline_is_short(search, found[0])) is not None:
            warnings.append(_too_short(request, look, short))
    settings = {
        "script": script.path.name,
        "arguments": list(arguments),
        "script_sha256": script.sha256,
        "optimizer": look.optimizer,
        "seeds": list(planned.seeds),
        "steps": steps,
    }
    rows = Rows(
        profile,
        search,
        drawn,
        None,
        request.ledger,
    )
    within = f" within {steps} steps" if steps else " before the script ended"
    job = PilotJob(script=str(script.path), arguments=tuple(arguments), threads=request.threads)
    return made_plan(
        request,
        workload,
        rows,
        settings,
        warnings=warnings,
        is_interrupted=is_interrupted,
        within=within,
        pilot=job if request.pilot else None,
    )


def _twins(found: Sequence[Candidate], look: Look) -> dict[Candidate, Candidate]:
    """Return the user's own AllReduce, which averages as DDP does if all mini-batches have the same weight."""
    ddp, own = found[0], found[1] if len(found) > 1 else found[0]
    is_alike = look.has_equal_weights and own.is_kept and type(own.strategy) is AllReduce
    return {own: ddp} if is_alike else {}


def _check_losses(request: Request, look: Look, name: str) -> None:
    require(
        look.observes or not (request.has_goal or request.pilot),
        f"{name} never calls session.observe, so its losses are not known; add the line session.observe(loss) between "
        f"loss.backward() and optimizer.step(), or leave out the target for a plan of paces only.",
    )


def _drop_if_baseline_is_short(search: ScriptSearch, baseline: Candidate) -> Trial | None:
    """Return the trial of DDP if the budget ended it, and drop all trials: nothing can be compared with it."""
    short = next((trial for trial in search.trials[baseline] if trial.status == OUT_OF_TIME), None)
    if short is not None:
        for trials in search.trials.values():
            trials.clear()
        search.skipped.clear()
    return short


def _too_short(request: Request, look: Look, short: Trial) -> str:
    done, loss = (short.curve[-1][0], short.curve[-1][2]) if short.curve else (0, math.inf)
    whole, budget = "", f"The budget of {round(request.budget_s, 1):g} s was spent"
    if look.steps is not None and done:
        minutes = look.steps / done * request.budget_s / 60
        whole = f"; all its {look.steps:,} steps would take about {minutes:.0f} min"
    reached = f" when the simulation of DDP was at step {done:,}, loss {loss:.4g}{whole}"
    none = " before the simulation of DDP had a loss"
    return (
        f"{budget}{reached if done and math.isfinite(loss) else none}. So only paces are predicted (fidelity C). "
        f"A larger budget or shorter arguments of the script allow more."
    )


def _differences(request: Request, look: Look) -> Iterator[str]:
    """Yield what makes a plan for this script uncertain."""
    profile = request.profile
    if profile.parameters is not None and profile.parameters != look.parameters:
        yield (
            f"The profile was measured with {profile.parameters:,} parameters and the script has "
            f"{look.parameters:,}: its step times are those of the other model."
        )
    if look.own is None and look.own_text:
        yield (
            f"The script's own strategy, {look.own_text}, is not in the plan, because its class is defined in the "
            f"script; move the class to a module, and give --own module:Class."
        )
    if look.sessions > 1:
        yield f"The script attaches {look.sessions} sessions; the plan follows the losses of the first one."
    if not request.has_goal:
        return
    if not look.uses_seed and len(request.seeds) > 1:
        yield (
            "The script seeds its own random generators, so all seeds give the same losses: one is simulated, and "
            "ranges are 10 % wider."
        )
    if profile.heterogeneity is not None and profile.heterogeneity > _HETEROGENEOUS:
        yield (
            f"The gradients of the workers' data differ by {100 * profile.heterogeneity:.0f} % of the whole gradient. "
            f"Losses are those of each worker's own model on its own data, which is too good for long periods then."
        )


def _failures(search: ScriptSearch) -> Iterator[str]:
    """Yield the error of each candidate in whose run the script failed."""
    for one, trials in search.trials.items():
        for trial in trials:
            if trial.status.startswith("failed"):
                yield f"With {one.label} workers the run {trial.status}"
