"""The result of a simulation: final model, trace, history and record, put into the run."""

from __future__ import annotations

import math

from torch import Tensor, nn

from tacit.errors import NotFinite, RunError
from tacit.record.run import Run, target_facts
from tacit.simulation.engine.engine import Engine
from tacit.simulation.world import World


def store_results(run: Run, world: World, first: Tensor, status: str) -> None:
    """Store the results of the world in ``run``: the final model, the trace up to now, the history."""
    evaluator = world.evaluator
    target, now_s = evaluator.target, world.agenda.now_s
    if target is not None and target.time_s > now_s:  # the run failed before this time, which the engine had passed
        target = None
    end_s = now_s if target is None else target.time_s
    world.trace.cut(end_s)
    reported = _reported(world, first) if target is None else target.model
    run.status, run.parameters = status, reported.cpu()
    if run.module is not None:
        _set_buffers(run.module, evaluator.buffers())
    run.record = {**run.record, "engine": world.engine.choice.engine, "engine_reason": world.engine.choice.reason}
    is_measured = target is not None or (world.servers and world.servers[0].updates == run.steps)
    if status == "finished" and not is_measured:
        try:
            evaluator.measure(run.steps, now_s, reported)
        except RunError as error:
            run.status = f"failed: {error}"
    run.server = [] if world.is_timing else [server.store() for server in world.servers]
    run.history = evaluator.rows(world.trace, end_s)
    if evaluator.until_loss is not None:
        run.record = {**run.record, "target": target_facts(run.history, evaluator.until_loss)}
    last = run.history[-1]["loss"] if run.history else None
    if status == "finished" and not world.is_timing and (last is None or not math.isfinite(last)):
        failure = NotFinite(0, run.steps, math.nan)
        run.status, failure.run = f"failed: {failure}", run
        raise failure


def _set_buffers(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy buffers into the module of the run."""
    for name, buffer in module.named_buffers():
        if name in values:
            buffer.copy_(values[name])


def _reported(world: World, first: Tensor) -> Tensor:
    if world.is_timing:
        return first
    if world.server_model is not None:
        return world.server_model.detach().clone()
    assert isinstance(world.engine, Engine)
    alive = next((w.rank for w in world.workers if not w.is_lost), 0)
    return world.engine.matrix[alive].detach().clone()
