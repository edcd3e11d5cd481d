"""``tacit.attach``: add a strategy to a training loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tacit.core.compatibility.deprecation import SERVER_VALUES, renamed_keyword, renamed_value
from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy
from tacit.errors import require
from tacit.runtime.backend import ProcessBackend
from tacit.runtime.environment import SERVE
from tacit.runtime.messaging.limits import frame_limit_bytes
from tacit.session import Session, SessionOptions, check_not_attached, common_table, script_context
from tacit.session.model.extra_state import MomentsEvery
from tacit.session.model.wrappers import WAY_OUT
from tacit.session.planned import Plan, Planned, planned
from tacit.session.probing import current_probe, take_probe
from tacit.session.recording.logs import Log
from tacit.session.steps.optimizers import Optimizers, check_optimizers, evaluates_several_times, optimizers_of
from tacit.strategies import AllReduce

_log: Final = logging.getLogger("tacit")
SECURITY = ("token", "curve", "plain")
SERVERS = ("rank0", "process")


@with_python_numbers
def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    strategy: Strategy[Any] | Plan | str | os.PathLike[str],
    *,
    steps: int | None = None,
    seed: int = 0,
    buffers: str = "average",
    optimizer_state: str = "keep",
    moments_every: MomentsEvery = None,
    calibration: Callable[[], Iterable[Any]] | Iterable[Any] | None = None,
    rescue_folder: str | Path | None = None,
    log: str | Log | None = None,
    progress_folder: str | Path | None = None,
    timeout_s: float | None = None,
    interface: str | None = None,
    security: str | None = None,
    server: str = "rank0",
    live: bool = False,
    rescue: str | Path | None = None,
) -> Session:
    """Run ``strategy`` in every ``optimizer.step()``, together with the other workers that torchrun started.

    strategy: a strategy, a plan of ``tacit.plan``, or the path of its plan.toml. A plan never changes the optimizer.
    optimizer: one that holds all trainable parameters, or a list of several that do so together; a step is then one
    step of each of them. steps: number of steps of each worker; None if unknown (the end then costs one more round).
    seed: of the strategy's own draws, the same on all ranks. buffers: of the model, when models are averaged:
    "average", "keep" (each worker its own), or "recalibrate" (measure BatchNorm statistics on ``calibration`` batches
    when the model is reported). optimizer_state: of each worker, when models are averaged: "keep", "average" or "reset"
    its moments. moments_every: rounds between two averages of the moments; {"exp_avg": 3, "exp_avg_sq": 6} gives each
    its own (DES-LOC). rescue_folder: folder for a checkpoint that the remaining workers write when one is lost, and all
    workers write on SIGTERM. log: "tensorboard" (or "tensorboard:FOLDER"), "wandb", "mlflow", or an object with
    write(step, numbers) and close(). progress_folder: folder of the run, to which each worker writes its progress for
    ``tacit watch``. timeout_s: longest wait for the others in a round; None: chosen from measured times, at least five
    minutes. interface: network interface for traffic between machines; None: the one that leads to the master.
    security: of messages: "token" (default on one machine), "curve" (default between machines), "plain" (trusted
    links). server: where the server of a server strategy runs: "rank0", in rank 0's process, or "process", a process of
    its own that ``tacit serve`` starts. live: send two more numbers per rank with every round of all ranks, compute and
    hook seconds, for ``session.live_round``; a plan that predicts rounds turns it on. rescue: deprecated name of
    rescue_folder.
    """
    folder = renamed_keyword("rescue", rescue, "rescue_folder", rescue_folder, stacklevel=5)
    server = renamed_value("server", server, SERVER_VALUES, stacklevel=5)
    plan = _planned(strategy)
    live = live or "rounds" in plan.predicted
    optimizers, strategy = _checked(model, optimizer, plan.strategy)
    _check_options(steps, timeout_s, security, server)
    probe = take_probe()
    if probe is not None:
        require(
            not any(map(evaluates_several_times, optimizers)),
            "LBFGS computes several gradients in one step, which tacit probe cannot measure; make a profile of a run "
            "on real processes instead: tacit.Profile.of(run).",
        )
        strategy, steps = probe.begin(strategy, steps), None
        folder, progress_folder, log, server, live = None, None, None, "rank0", False
    elif folder is not None and script_context() is None:
        _check_folder(Path(folder))
    check_optimizers(optimizers, model, strategy)
    check_not_attached(model)
    options = SessionOptions(
        buffers=buffers,
        optimizer_state=optimizer_state,
        moments_every=moments_every,
        calibration=calibration,
        rescue_folder=None if folder is None else Path(folder),
        progress_folder=None if progress_folder is None else Path(progress_folder),
        log=log,
        live=live,
        plan=plan if plan.predicted and probe is None else None,
        probe=probe,
    )
    if SERVE in os.environ:
        table = common_table(model, optimizers, strategy, steps, seed, options)
        where = {"interface": interface, "security": security, "timeout_s": timeout_s}
        _serve_and_exit(model, optimizers, strategy, table, steps, seed, where)
    simulated, device = script_context(), next(model.parameters()).device
    backend = (
        ProcessBackend(
            strategy,
            device=device,
            interface=interface,
            security=security,
            timeout_s=timeout_s,
            server=server,
            live=live,
            largest_bytes=frame_limit_bytes(model),
        )
        if simulated is None
        else simulated.open_backend(model, strategy)
    )
    if backend.rank == 0:
        for remark in plan.remarks(backend.size, next(iter(optimizers)).param_groups[0]["lr"]):
            _log.warning("%s", remark)
    session = Session(backend, model, optimizers, strategy, steps=steps, seed=seed, options=options)
    if plan.predicted:
        session.run.record = {**session.run.record, "predicted": dict(plan.predicted)}
    return session


def _planned(given: Strategy[Any] | Plan | str | os.PathLike[str]) -> Planned:
    """Return the strategy or plan that was given; a plan.toml may be missing where another strategy replaces it.

    A script that names the plan.toml of its next plan can thus be probed and planned.
    """
    simulated = script_context()
    is_file = isinstance(given, str | os.PathLike) and Path(given).suffix == ".toml"
    is_missing = is_file and not Path(os.fspath(given)).exists()  # type: ignore[arg-type]
    if is_missing and simulated is not None and simulated.strategy is not None:
        return Planned(simulated.strategy)
    if is_missing and simulated is None and current_probe() is not None:
        return Planned(AllReduce())
    found = planned(given)
    if simulated is not None:
        simulated.own_strategies.append(str(found.strategy))
    return found


def _checked(model: nn.Module, optimizer: object, strategy: Strategy[Any]) -> tuple[Optimizers, Strategy[Any]]:
    """Check the types of what is attached; return the optimizers and the strategy to use.

    ``tacit simulate train.py -s STRATEGY`` replaces the script's own strategy.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r} must be a torch.nn.Module.")
    if isinstance(model, DistributedDataParallel):
        raise TypeError(f"model is wrapped in DistributedDataParallel, which communicates in every step. {WAY_OUT}")
    optimizers = optimizers_of(optimizer)
    simulated = script_context()
    return optimizers, strategy if simulated is None or simulated.strategy is None else simulated.strategy


def _check_options(steps: int | None, timeout_s: float | None, security: str | None, server: str) -> None:
    require(steps is None or (isinstance(steps, int) and steps >= 1), f"steps={steps} must be at least 1, or None.")
    require(timeout_s is None or timeout_s > 0, f"timeout_s={timeout_s} must be positive, or None.")
    require(security is None or security in SECURITY, f"security={security!r} must be one of {', '.join(SECURITY)}.")
    server = renamed_value("server", server, SERVER_VALUES, stacklevel=5)
    require(server in SERVERS, f"server={server!r} must be one of {', '.join(SERVERS)}.")


def _check_folder(folder: Path) -> None:
    """Raise unless ``folder`` can be written, or made: a worker that is lost would be the first to show it."""
    parents = (folder.absolute(), *folder.absolute().parents)
    there = next(path for path in parents if os.path.exists(path))  # noqa: PTH110 - Path.exists may raise
    require(there.is_dir(), f"rescue_folder={folder}: {there} is a file; give a folder.")
    require(
        os.access(there, os.W_OK | os.X_OK),
        f"rescue_folder={folder} cannot be written on this machine; give a folder that every worker can write.",
    )


def _serve_and_exit(
    model: nn.Module,
    optimizers: Optimizers,
    strategy: Strategy[Any],
    table: dict[str, Any],
    steps: int | None,
    seed: int,
    where: dict[str, Any],
) -> NoReturn:
    """Serve in this process, then exit: the rest of the script is for workers."""
    from tacit.runtime.server.process import serve  # needs pyzmq

    keep_every = None if steps is None else max(1, steps // 100)
    serve(model, optimizers, strategy, table=table, steps=steps, seed=seed, keep_every=keep_every, **where)
    raise SystemExit(0)
