"""What must hold in every run of a drawn plan, whatever it meets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

import tacit
from fuzz.drawn_plans import SERVERS, DrawnPlan
from tacit.compression.feedback.ef21 import EstimateFeedback


@dataclass
class Seen:
    """What a watched strategy has told."""

    starts: torch.Tensor
    states: dict[int, Any] = field(default_factory=dict)
    ends: dict[int, torch.Tensor] = field(default_factory=dict)  # by rank: the model after ``finish``
    regrouped: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)  # by generation and rank: the model
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by generation


def watched(plan: DrawnPlan) -> tuple[tacit.Strategy[Any], Seen]:
    """Return the strategy of ``plan``, which tells what it does; with different initial models, if the plan says so."""
    strategy, kind = plan.strategy, type(plan.strategy)
    drawn = np.random.default_rng(plan.seed).standard_normal((plan.cluster.workers, 7))
    seen = Seen(torch.from_numpy(drawn).float())
    begun: set[int] = set()

    def init(self: Any, worker: Any) -> Any:
        if plan.keeps_models and worker.rank not in begun:
            worker.parameters.copy_(seen.starts[worker.rank])
        begun.add(worker.rank)
        seen.states[worker.rank] = kind.init(self, worker)
        return seen.states[worker.rank]

    def finish(self: Any, worker: Any, state: Any) -> None:
        kind.finish(self, worker, state)
        seen.ends[worker.rank], seen.states[worker.rank] = worker.parameters.clone(), state

    def regrouped(self: Any, worker: Any, state: Any, members: Sequence[int]) -> None:
        generation = worker.world.members.generation
        seen.regrouped.setdefault(generation, {})[worker.rank] = worker.parameters.clone()
        seen.members[generation] = tuple(members)
        kind.regrouped(self, worker, state, members)

    values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}  # type: ignore[arg-type]
    hooks = {"init": init, "finish": finish, "regrouped": regrouped}
    return type(kind.__name__, (kind,), hooks)(**values), seen


def problems(plan: DrawnPlan, kind: str, run: tacit.Run | None, error: BaseException | None) -> Iterator[str]:
    """Yield what is wrong with the end of a run and with its trace."""
    allowed = {"finished", "PeerLost", "TimedOut"} | ({"Deadlock", "RunError"} if plan.loses_messages else set())
    if kind == "refused" and not plan.cluster.joins:
        yield f"refused without a joiner: {error}"
    elif kind not in allowed | {"refused"}:
        yield f"{kind}: {error}"
    if isinstance(error, tacit.PeerLost):
        yield from _wrong_names(plan, error)
    if run is None:
        return
    if kind in ("Deadlock", "RunError") and not _lost_a_message(run):
        yield f"{kind}, though every message has arrived: {error}"
    yield from _trace_problems(plan, run)
    if kind == "finished":
        yield from _result_problems(plan, run)


def _wrong_names(plan: DrawnPlan, error: tacit.PeerLost) -> Iterator[str]:
    """Yield workers that are called lost and were not; the run goes on while enough members are left."""
    may_be_lost = {fault.rank for fault in plan.cluster.faults if isinstance(fault, tacit.Crash | tacit.Join)}
    if not set(error.ranks) <= may_be_lost:
        yield f"lost are {error.ranks}, and only {sorted(may_be_lost)} can be"
    fewest, lost = plan.cluster.min_workers, len(error.ranks)
    if fewest is not None and plan.strategy.regroups and plan.cluster.workers - lost >= fewest:
        joined = {fault.rank for fault in plan.cluster.faults if isinstance(fault, tacit.Join)} - set(error.ranks)
        if plan.cluster.workers - lost - len(joined) >= fewest:
            yield f"ended with {plan.cluster.workers - lost} workers left of at least {fewest}: {error}"


def _lost_a_message(run: tacit.Run) -> bool:
    """Whether a message was sent and has not arrived. None is in flight when a run ends in a deadlock."""
    kinds = Counter(event.kind for event in run.trace)
    return kinds["send"] > kinds["receive"]


def _trace_problems(plan: DrawnPlan, run: tacit.Run) -> Iterator[str]:
    events = list(run.trace)
    sends = [event for event in events if event.kind == "send"]
    total = sum(event.size_bytes for event in events if event.kind in ("send", "exchange"))
    if total != run.summary()["bytes_sent"]:
        yield f"{total} bytes in the trace, {run.summary()['bytes_sent']} in the summary"
    sent_at = defaultdict(list)
    for event in sorted(sends, key=lambda event: event.time_s):
        sent_at[event.rank, event.peer, event.size_bytes, event.label].append(event.time_s)
    for event in sorted((e for e in events if e.kind == "receive"), key=lambda event: event.time_s):
        times_s = sent_at[event.peer, event.rank, event.size_bytes, event.label]
        if not times_s or times_s[0] > event.time_s + 1e-12:
            yield f"received and never sent: {event}"
            break
        times_s.pop(0)
    for event in events:
        if event.start_s > event.time_s + 1e-12 or event.time_s < 0:
            yield f"ends before it starts: {event}"
            break
    yield from _dead_that_act(plan, events)


def _dead_that_act(plan: DrawnPlan, events: list[Any]) -> Iterator[str]:
    back = {fault.rank for fault in plan.cluster.joins}
    for fault in plan.cluster.faults:
        if isinstance(fault, tacit.Crash) and fault.rank >= 0 and fault.rank not in back:
            for event in events:
                acts = event.kind in ("compute", "send", "exchange") and event.rank == fault.rank
                at_s = event.start_s if event.kind == "exchange" else event.time_s  # one under way was announced
                if acts and at_s > fault.at_s + 1e-9:
                    yield f"acts after its loss at {fault.at_s} s: {event}"
                    break


def _result_problems(plan: DrawnPlan, run: tacit.Run) -> Iterator[str]:
    if run.status != "finished":
        yield f"status {run.status}"
    if plan.settings["timing_only"]:
        return
    first, last = run.history[0]["loss"], run.history[-1]["loss"]
    if last is None or not math.isfinite(last):
        yield f"loss {last}"
    elif last > 5 * first + 1 and not plan.keeps_models and last > 5 * _loss_without_faults(plan):
        yield f"loss rose from {first} to {last}"
    if plan.name in SERVERS:
        updates = [event.value for event in run.trace.of("note") if event.label == "update"]
        if sorted(set(updates)) != updates or max(updates, default=0) != plan.settings["steps"]:
            yield f"updates {updates[-3:]} of {plan.settings['steps']}"
        bound = getattr(plan.strategy, "maximum_staleness", None)
        stale = max((e.value for e in run.trace.of("note") if e.label == "staleness"), default=0)
        if bound is not None and stale > bound:
            yield f"staleness {stale} above {bound}"


def _loss_without_faults(plan: DrawnPlan) -> float:
    """Return the last loss of the same run without faults: momentum and old gradients alone make some diverge."""
    calm = replace(plan.cluster, faults=[], min_workers=None)
    run = tacit.simulate(plan.workload, plan.strategy, cluster=calm, **plan.settings)
    return float(run.history[-1]["loss"])


def model_problems(plan: DrawnPlan, run: tacit.Run | None, seen: Seen) -> Iterator[str]:
    """Yield what is wrong with models: those of joiners, of the end, and sums that must be conserved."""
    if plan.settings["timing_only"] or run is None:
        return
    for generation, members in seen.members.items():
        before = set(seen.members.get(generation - 1, range(plan.cluster.workers) if generation == 2 else members))
        models = seen.regrouped[generation]
        for joiner in set(members) - before:
            others = [model for rank, model in models.items() if rank in before]
            is_known = joiner in models and len(others) == len(before & set(members))
            if is_known and not any(torch.equal(models[joiner], model) for model in others):
                yield f"worker {joiner} joined generation {generation} with a model that no member has"
    if run.status != "finished":
        return
    ends = list(seen.ends.values())
    if plan.name not in SERVERS and any(not torch.equal(end, ends[0]) for end in ends):
        yield f"models at the end differ by {max(float((end - ends[0]).abs().max()) for end in ends):.3g}"
    if plan.keeps_models:
        yield from _sum_problems(plan, run, seen)
    yield from _estimate_problems(plan, seen)


def _sum_problems(plan: DrawnPlan, run: tacit.Run, seen: Seen) -> Iterator[str]:
    """Exchanges alone leave the mean of all models; with other members it stays among the initial models."""
    slack = 0.05 if "lattice" in plan.name or "stage" in plan.name else 1e-4
    if not plan.changes_members and "Pull" not in plan.name and not plan.loses_messages:
        drift = float((run.parameters - seen.starts.mean(0)).abs().max())
        if drift > slack:
            yield f"the mean moved by {drift:.3g}"
    if {event.rank for event in run.trace.of("fault") if event.label == "crash"} == set(range(plan.cluster.workers)):
        return  # nobody may have been left to give a model, and the new workers began anew
    low, high = seen.starts.min(0).values - slack, seen.starts.max(0).values + slack
    if ((run.parameters < low) | (run.parameters > high)).any():
        yield f"the model {run.parameters.tolist()} is not among the initial ones"


def _estimate_problems(plan: DrawnPlan, seen: Seen) -> Iterator[str]:
    feedback = getattr(plan.strategy, "feedback", None)
    if not isinstance(feedback, EstimateFeedback) or plan.name == "EF21-BC-scatter":
        return
    states = [seen.states[rank] for rank in seen.ends]
    total = sum(feedback.gain(state.rank, state.ranks) * state.own["estimate"] for state in states)
    for state in states:
        if not torch.allclose(state.shared["sum"], total, rtol=1e-7, atol=1e-9):
            yield f"estimates add up to {total.tolist()}, and the sum is {state.shared['sum'].tolist()}"
            break
