"""One worker of ``tacit train``, in a process that torchrun started; rank 0 shows and saves the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import typer

from tacit.cli.exit_messages import BAD_INPUT, FAILED, INTERRUPTED, complain, describe, is_disk_full
from tacit.cli.planned_runs import PlanDisplay, planned_run
from tacit.cli.save_run import keep
from tacit.cli.screens.terminal import Screen, console
from tacit.cli.settings import Settings
from tacit.errors import Interrupted, PeerLost, RunError, SpeedBias, TacitError
from tacit.record.run import Run
from tacit.registry.tables import Table
from tacit.runtime.launched import SERVER_SEAT
from tacit.runtime.launcher.reports import report_to_launcher
from tacit.runtime.train import Progress, train
from tacit.session.checkpoints import step_of
from tacit.session.planned import Planned

CHECKPOINT: Final = "checkpoint"
"""The folder of checkpoints, in that of the run."""
_TENSORBOARD: Final = "tensorboard"
_SERVER_EXIT_S: Final = 10.0
"""How long a server in its own process may take to exit after the run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on real processes: the settings that the simulator has too, and those of processes."""

    settings: Settings
    cluster: Table  # as given: kept for ``tacit simulate --config run.toml``, which predicts this run
    train: Table  # checkpoint_every, log, timeout_s, interface, security, server
    notes: tuple[str, ...] = ()  # on deprecated values

    def table(self) -> Table:
        """Return the table from which ``tacit train --config`` makes this run again."""
        s = self.settings
        return {
            "workload": str(s.workload),
            "strategy": str(s.strategies[0]),
            "seed": s.seeds[0],
            "steps": s.steps,
            "optimizer": s.optimizer,
            "lr": s.lr,
            "momentum": s.momentum,
            "weight_decay": s.weight_decay,
            **({} if s.optimizer_state == "keep" else {"optimizer_state": s.optimizer_state}),
            **({} if s.moments_every is None else {"moments_every": s.moments_every}),
            "schedule": None if s.schedule is None else str(s.schedule),
            "evaluate_every": s.evaluate_every,
            "device": s.device,
            "threads": s.threads,
            "cluster": self.cluster,
            **({"train": self.train} if self.train else {}),
        }


def run_worker(plan: Plan, folder: Path, *, json_file: Path | None, quiet: bool, shows_progress: bool = False) -> None:
    """Run this process's worker; the reporting rank saves the run and prints how it ended."""
    me = int(os.environ["RANK"])
    [strategy] = plan.settings.strategies
    if plan.settings.workload.is_shuffled:  # the server cannot know this and would warn
        warnings.filterwarnings("ignore", category=SpeedBias)
    has_rounds = not (strategy.handles or strategy.has_server)
    signal.signal(signal.SIGINT, _end_in_round if has_rounds else _interrupt_once)
    failure: RunError | Interrupted | None = None
    try:
        with Screen(console(quiet or me != 0), clock="s") as watcher:
            watcher.begin(f"{plan.settings.strategies[0]} · seed {plan.settings.seeds[0]}")
            display = PlanDisplay(watcher.progress.console, always=shows_progress)
            planned = planned_run(plan.train, strategy, folder, display)
            run = _train(plan, planned, folder, watcher.step if me == 0 else None)
    except (RunError, Interrupted) as error:
        if error.run is None:
            raise
        run, failure = error.run, error
    for one in (signal.SIGINT, signal.SIGTERM):  # a signal must not interrupt the save
        signal.signal(one, signal.SIG_IGN)
    if _reports(me, failure):
        run.config, run.cluster = plan.table(), _described_processes()
        keep(run, folder, console(quiet), json_file)
        if planned.ended is not None and failure is None:
            planned.ended(run)
    if failure is not None:
        raise failure


def report_end(error: BaseException, folder: Path | None) -> typer.Exit:
    """Report to the launcher why this worker ended, print it on the reporting rank, and return the exit."""
    is_interrupt = isinstance(error, KeyboardInterrupt)
    is_run = isinstance(error, RunError) or is_disk_full(error)
    code = INTERRUPTED if is_interrupt else FAILED if is_run else BAD_INPUT
    message = what_happened(error)
    report_to_launcher(message, type(error).__name__, code)
    if _reports(int(os.environ["RANK"]), error):
        complain(f"{message} {what_is_left(folder)}".strip())
    return typer.Exit(code)


def what_happened(error: BaseException) -> str:
    """Return an error as a sentence."""
    if isinstance(error, PeerLost):
        reason = (error.reason or "its process exited without reporting an error").rstrip(".")
        return f"{error.lost} after {error.at_s:.3g} s: {reason}."
    text = describe(error) or "interrupted"
    return text if text.endswith((".", "?")) else f"{text}."


def what_is_left(folder: Path | None) -> str:
    """Return which results of an unfinished run are in ``folder``, and the command that continues the run."""
    if folder is None or not (folder / "run.toml").exists():
        return ""
    kept = f"The unfinished run is saved in {folder}" if (folder / "run.json").exists() else "No run was saved"
    try:
        step = step_of(folder / CHECKPOINT)
    except TacitError:
        step = None
    if step is None:
        return f"{kept}; there is no checkpoint to continue from (--checkpoint-every N writes checkpoints)."
    return f"{kept}; tacit train --resume {folder} continues from its checkpoint of step {step:,}."


def _train(plan: Plan, planned: Planned, folder: Path, progress: Progress | None) -> Run:
    settings = plan.settings
    own = {name: value for name, value in plan.train.items() if name != "plan"}
    torch.set_num_threads(settings.threads)
    if settings.device == "cuda":  # one GPU for each process of this machine, if there are enough
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if own.get("log") == _TENSORBOARD:
        own["log"] = f"{_TENSORBOARD}:{folder / _TENSORBOARD}"
    [seed] = settings.seeds
    names: tuple[str, ...] = ("steps", "optimizer", "lr", "momentum", "weight_decay", "schedule")
    names += ("evaluate_every", "device", "optimizer_state", "moments_every")
    shared: dict[str, Any] = {name: getattr(settings, name) for name in names}
    with _server_process(own.pop("server", "rank0"), folder) as where:
        return train(
            settings.workload,
            replace(planned, ended=None),  # the last evaluation comes after the session
            seed=seed,
            checkpoints=folder / CHECKPOINT,
            progress_folder=folder,
            progress=progress,
            server=where,
            **shared,
            **own,
        )


def run_server(plan: Plan, folder: Path) -> None:
    """Run the server of the run in ``folder``."""
    with contextlib.suppress(SystemExit):  # with which ``attach`` ends the server's process
        [strategy] = plan.settings.strategies
        _train(replace(plan, train={**plan.train, "server": "rank0"}), Planned(strategy), folder, None)


@contextlib.contextmanager
def _server_process(where: str, folder: Path) -> Iterator[str]:
    """Start and end the server if it runs in its own process; yield the value of ``server=`` for ``attach``.

    tacit's own launcher has started it already.
    """
    if where == "rank0" or SERVER_SEAT in os.environ:
        yield "rank0" if where == "rank0" else "process"
        return
    process = None
    if os.environ["RANK"] == "0":
        if where == "process":
            process = subprocess.Popen([sys.executable, "-m", "tacit", "serve", str(folder)])
        else:
            master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            console(False).print(
                f"waiting for the server; run on its machine: tacit serve {folder} --master {master}",
                highlight=False,
                soft_wrap=True,
            )
    try:
        yield "process"
    finally:
        if process is not None:
            try:
                process.wait(_SERVER_EXIT_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


def _reports(me: int, failure: BaseException | None) -> bool:
    """Whether this rank reports for all: the lowest rank that was not lost."""
    lost = failure.ranks if isinstance(failure, PeerLost) and failure.reason is None else ()
    return me == next(rank for rank in range(int(os.environ["WORLD_SIZE"])) if rank not in lost)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C and ignore later ones."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_in_round(number: int, frame: FrameType | None) -> None:
    """End in the next round, as at SIGTERM, where all workers are at the same step; before attach, end at once."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _interrupt_once(number, frame)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)


def _described_processes() -> str:
    size = int(os.environ["WORLD_SIZE"])
    machines = size // int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return f"{size} process{'es' * (size > 1)} on {'one machine' if machines == 1 else f'{machines} machines'}"
