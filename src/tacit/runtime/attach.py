"""``tacit.attach``: the three lines that bring a strategy into a training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy
from tacit.errors import require
from tacit.runtime.backend import ProcessBackend
from tacit.runtime.environment import SERVES
from tacit.session import Session, SessionOptions, common_table, current, refuse_second
from tacit.session.logs import Log
from tacit.session.model.wrappers import WAY_OUT
from tacit.session.steps.optimizers import Optimizers, check_optimizers, optimizers_of

SECURITY = ("token", "curve", "plain")
SERVERS = ("beside", "apart")


@with_python_numbers
def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    strategy: Strategy[Any],
    *,
    steps: int | None = None,
    seed: int = 0,
    buffers: str = "average",
    optimizer_state: str = "keep",
    calibration: Callable[[], Iterable[Any]] | Iterable[Any] | None = None,
    rescue: str | Path | None = None,
    log: str | Log | None = None,
    timeout_s: float | None = None,
    interface: str | None = None,
    security: str | None = None,
    server: str = "beside",
) -> Session:
    """Let ``strategy`` happen in every ``optimizer.step()`` from now on, together with the other workers that torchrun
    started.

    optimizer: one that holds all trainable parameters, or a list of several that do so together; a step is then one
    step of each of them. steps: how many steps each worker will take; None where nobody knows (the end then costs one
    round more). seed: of the strategy's own draws, the same on all ranks. buffers: of the model, when models are
    averaged: "average", "keep" each worker's own, or "recalibrate" BatchNorm on ``calibration``
        batches when the model is reported.
    optimizer_state: of each worker, when models are averaged: "keep", "average" or "reset" its moments. rescue: folder
    in which the survivors leave a checkpoint when a worker is lost, and all of them when SIGTERM asks one to end. log:
    "tensorboard" (or "tensorboard:FOLDER"), "wandb", "mlflow", or an object with write(step, numbers) and close().
    timeout_s: how long to wait for the others in a round; None: chosen from what was measured, five minutes at least.
    interface: network interface for traffic between machines; None: the one that leads to the master. security: of
    messages: "token" (default on one machine), "curve" (default between machines), "plain" (trusted links). server: of
    a server strategy: "beside" the worker of rank 0, or "apart", a process of its own that ``tacit serve`` starts.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r} must be a torch.nn.Module.")
    if isinstance(model, DistributedDataParallel):
        raise TypeError(f"model is wrapped in DistributedDataParallel, which communicates in every step. {WAY_OUT}")
    optimizers = optimizers_of(optimizer)
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy={strategy!r} must be a strategy; try tacit.LocalSGD().")
    simulated = current()
    if simulated is not None and simulated.strategy is not None:  # tacit simulate train.py -s STRATEGY
        strategy = simulated.strategy
    require(steps is None or (isinstance(steps, int) and steps >= 1), f"steps={steps} must be at least 1, or None.")
    require(timeout_s is None or timeout_s > 0, f"timeout_s={timeout_s} must be positive, or None.")
    require(security is None or security in SECURITY, f"security={security!r} must be one of {', '.join(SECURITY)}.")
    require(server in SERVERS, f"server={server!r} must be one of {', '.join(SERVERS)}.")
    check_optimizers(optimizers, model, strategy)
    refuse_second(model)
    policies = SessionOptions(
        buffers=buffers,
        optimizer_state=optimizer_state,
        calibration=calibration,
        rescue=None if rescue is None else Path(rescue),
        log=log,
    )
    if SERVES in os.environ:
        table = common_table(model, optimizers, strategy, steps, seed, policies)
        where = {"interface": interface, "security": security, "timeout_s": timeout_s}
        _serve_and_leave(model, optimizers, strategy, table, steps, seed, where)
    device = next(model.parameters()).device
    backend = (
        ProcessBackend(
            strategy, device=device, interface=interface, security=security, timeout_s=timeout_s, server=server
        )
        if simulated is None
        else simulated.open_backend()
    )
    return Session(backend, model, optimizers, strategy, steps=steps, seed=seed, policies=policies)


def _serve_and_leave(
    model: nn.Module,
    optimizers: Optimizers,
    strategy: Strategy[Any],
    table: dict[str, Any],
    steps: int | None,
    seed: int,
    where: dict[str, Any],
) -> NoReturn:
    """This process is the server: what follows in the script is for workers."""
    from tacit.runtime.server.process import serve  # pyzmq, which a run without messages does not need

    keep_every = None if steps is None else max(1, steps // 100)
    serve(model, optimizers, strategy, table=table, steps=steps, seed=seed, keep_every=keep_every, **where)
    raise SystemExit(0)
