"""Training of a built-in workload on real processes: the loop of ``tacit train``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim import Optimizer

from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy
from tacit.errors import Interrupted, NotFinite
from tacit.record.merge import row_at
from tacit.record.run import Run, Tally
from tacit.runtime.attach import attach
from tacit.session import Session, rank, size
from tacit.session.checkpoints import step_of
from tacit.session.planned import Planned, planned
from tacit.training.optimizers import Factory, optimizer_factory
from tacit.training.schedules import Schedule, factors
from tacit.workloads.workload import Problem, Workload

Progress = Callable[[int, int, float, float | None], None]
"""A callback with step, steps, seconds and loss, called regularly; the loss is None where none is measured."""
_SHOWN_S: Final = 0.2
"""Shortest time between two calls of ``Progress`` without an evaluation."""


@with_python_numbers
def train(
    workload: Workload,
    strategy: Strategy[Any] | Planned,
    *,
    steps: int = 500,
    seed: int = 0,
    optimizer: str | Factory = "sgd",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[int], float] | None = None,
    evaluate_every: int | None = None,
    device: str | torch.device = "cpu",
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    progress: Progress | None = None,
    **attached: Any,
) -> Run:
    """Train ``workload`` with ``strategy`` on the processes that torchrun started, and return the run.

    Rank 0 returns the whole run, other ranks their part. With equal seeds every worker draws the same batches as in
    ``tacit.simulate``. Evaluations stop the clock. checkpoints: folder to write to every ``checkpoint_every`` steps; a
    run that finds a checkpoint there resumes from it. All other arguments are as in ``tacit.simulate`` and
    ``tacit.attach``.
    """
    streams, own_rank, plan = Streams(seed), rank(), planned(strategy)
    has_server = plan.strategy.has_server
    problem = workload.open(size(), streams)
    problem.to(torch.device(device))
    trainable = [p for p in problem.module.parameters() if p.requires_grad]
    local = optimizer_factory(optimizer, lr, momentum, weight_decay)(trainable)
    torch.manual_seed(streams.integer("modules", own_rank))
    loop = Loop(problem, local, factors(schedule, steps), own_rank)
    every = evaluate_every or max(1, steps // 100)
    folder = None if checkpoints is None else Path(checkpoints)
    if has_server and own_rank == 0:
        loop.measure_start()
    session = attach(problem.module, local, plan, steps=steps, seed=seed, rescue_folder=folder, **attached)
    session.run.workload, session.run.metric_name = str(workload), problem.metric_name
    session.run.record = {**session.run.record, "batch": problem.batch_size}
    train_steps = _train_with_server if has_server else _train_in_step
    try:
        with session:
            train_steps(session, loop, steps, every, folder, checkpoint_every, progress)
    except KeyboardInterrupt:
        interrupted = Interrupted(f"interrupted after {session.updates} steps")
        interrupted.run = session.run
        raise interrupted from None
    if own_rank == 0:
        loop.evaluate_end(session, progress)
    return session.run


def _train_in_step(
    session: Session,
    loop: Loop,
    steps: int,
    every: int,
    folder: Path | None,
    checkpoint_every: int | None,
    progress: Progress | None,
) -> None:
    """Take all steps in step with the other workers; evaluations and checkpoints are collective."""
    if folder is not None and step_of(folder) is not None:
        loop.skip(session.resume(folder))
    else:
        loop.evaluate(session, steps, progress)
    while not session.is_done:
        loop.step(session)
        if session.step % every == 0 and not session.is_done:
            loop.evaluate(session, steps, progress)
        else:
            loop.show(session, steps, progress)
        if folder is not None and checkpoint_every and session.step % checkpoint_every == 0:
            session.checkpoint(folder)


def _train_with_server(
    session: Session,
    loop: Loop,
    steps: int,
    every: int,
    folder: Path | None,
    checkpoint_every: int | None,
    progress: Progress | None,
) -> None:
    """Compute gradients until the server has made its updates.

    The server keeps copies of its model, which are evaluated after the run.
    """
    session.keep_models(every)
    if folder is not None and step_of(folder) is not None:
        session.resume(folder)
    elif session.rank == 0:
        session.log(**loop.start)
    written = session.updates
    while not session.is_done:
        loop.step(session)
        loop.show(session, steps, progress)
        if folder is not None and checkpoint_every and session.updates >= written + checkpoint_every:
            written = session.updates
            if not session.server_is_process:  # otherwise it writes its own checkpoints
                session.checkpoint(folder)


class Loop:
    """One worker's ordinary training loop."""

    def __init__(self, problem: Problem, optimizer: Optimizer, factor: Callable[[int], float], rank: int) -> None:
        self._problem, self._optimizer, self._factor, self._rank = problem, optimizer, factor, rank
        self._sampler = problem.samplers[rank]
        self._weight = self._sampler.batch_size / problem.batch_size
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._due = 0.0  # when ``progress`` is called again
        self.start: dict[str, float | None] = {}  # what was measured of the initial model

    def skip(self, steps: int) -> None:
        """Skip the batches of ``steps`` steps that an earlier run has taken."""
        for _ in range(steps):
            self._sampler.take(1)

    def step(self, session: Session) -> None:
        """Take one step."""
        factor = self._factor(session.updates)
        for group, base in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = base * factor
        batch = self._problem.collate([self._rank], self._sampler.take(1))
        self._optimizer.zero_grad()
        loss = self._problem.module(*(part[0] for part in batch))
        loss.backward()
        session.observe(loss, self._weight)
        self._optimizer.step()

    def show(self, session: Session, steps: int, progress: Progress | None) -> None:
        """Call ``progress`` on rank 0, without a loss, unless it was called a short time ago."""
        if progress is not None and self._rank == 0 and time.monotonic() >= self._due:
            progress(session.updates, steps, session.now_s(), None)
            self._due = time.monotonic() + _SHOWN_S

    def evaluate(self, session: Session, steps: int, progress: Progress | None) -> None:
        """Evaluate the reported model on rank 0. Collective."""
        with session.reported_model():
            if self._rank == 0:
                result = self._measure()
                session.log(**result)
                if progress is not None:
                    progress(session.step, steps, session.now_s(), result["loss"])

    def measure_start(self) -> None:
        """Evaluate the initial model, before the clock of the run starts."""
        self.start = self._measure()

    def evaluate_end(self, session: Session, progress: Progress | None) -> None:
        """Evaluate the copies of the model that a server kept, then the final model."""
        run, result = session.run, self._measure()
        time_s, tally = float(run.summary()["time_s"]), Tally(run.trace)
        for updates, at_s, model in session.kept_models:
            if updates < run.steps:
                run.history.append(row_at(tally, at_s, updates, **self._problem.evaluate(model)._asdict()))
            else:
                time_s = at_s
        run.history.append(row_at(tally, time_s, run.steps, **result))
        if result["loss"] is None or not math.isfinite(result["loss"]):
            failure = NotFinite(0, run.steps, math.nan)
            run.status, failure.run = f"failed: {failure}", run
            raise failure
        if progress is not None:
            progress(run.steps, run.steps, time_s, result["loss"])

    def _measure(self) -> dict[str, float | None]:
        module = self._problem.module
        named = dict(module.named_parameters())
        flat = torch.cat([named[name].detach().reshape(-1) for name in self._problem.layout.names])
        return self._problem.evaluate(flat, dict(module.named_buffers()) or None)._asdict()
