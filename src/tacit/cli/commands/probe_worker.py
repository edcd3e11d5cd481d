"""One worker of ``tacit probe``, in a process that torchrun started; rank 0 writes and shows the profile."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import torch
import typer

from tacit.cli.exit_messages import BAD_INPUT, FAILED, INTERRUPTED, complain, describe
from tacit.cli.screens.probe_screen import screen
from tacit.cli.screens.terminal import console, print_line
from tacit.cli.settings import Settings
from tacit.errors import PeerLost
from tacit.profiles.probe.findings import Findings, findings_of
from tacit.profiles.probe.strategy import Probing
from tacit.runtime.launcher.reports import report_to_launcher
from tacit.runtime.train import train
from tacit.session.probing import Probe, ProbeComplete, Reason, ScriptEnded, set_probe

_NEVER: Final = 10**9
"""Steps between evaluations of a workload, which the probe does not need."""
_CONSEQUENCES: Final = ("PeerLost", "TimedOut", "Interrupted", "KeyboardInterrupt")
"""Errors that may follow from the end of another worker."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is probed, and where the profile goes. settings: of a workload; script: None for a workload."""

    script: Path | None
    arguments: tuple[str, ...]
    settings: Settings
    budget_s: float
    out: Path
    quiet: bool
    debug: bool
    next_step: str  # a command line to type next


def run_probe(job: Job) -> None:
    """Run script or workload under a probe; on rank 0 write the profile, also if the probe ends early."""
    probe = Probe(Probing(budget_s=job.budget_s))
    probe.on_end = _ignore_signals
    set_probe(probe)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _interrupt_once)
    error: BaseException
    try:
        with _silenced(job.debug):
            _run(job)
        error = ScriptEnded("the script ended")
    except SystemExit as leaving:
        error = ScriptEnded(f"the script exited with code {leaving.code}")
    except BaseException as raised:  # noqa: BLE001 - it is reported below
        error = raised
    probe.end(error)
    set_probe(None)
    _ignore_signals()
    if probe.run is not None and os.environ["RANK"] == "0":
        _save(job, probe)
    _report(job, probe, error)


def _run(job: Job) -> None:
    torch.set_num_threads(job.settings.threads)
    if job.script is None:
        s = job.settings
        train(
            s.workload,
            s.strategies[0],
            steps=s.steps,
            seed=s.seeds[0],
            optimizer=s.optimizer,
            lr=s.lr,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            schedule=s.schedule,
            evaluate_every=_NEVER,
            device=s.device,
        )
        return
    sys.argv = [str(job.script), *job.arguments]
    sys.path.insert(0, str(job.script.parent.resolve()))
    runpy.run_path(str(job.script), run_name="__main__")


def _save(job: Job, probe: Probe) -> None:
    """Write and show the profile of what was measured."""
    assert probe.run is not None
    screen_, ended = console(job.quiet), _why_ended(probe.reasons)
    try:
        findings: Findings = findings_of(
            probe.run, strategy=probe.own_strategy, steps=probe.own_steps, sessions=probe.sessions, ended=ended
        )
    except ValueError as error:
        complain(f"{f'the probe ended early, because {ended}; ' if ended else ''}no profile was written: {error}")
        return
    findings.profile.save(job.out, overwrite=True)
    for line in screen(findings):
        print_line(screen_, line)
    partial = " partial" if ended else ""
    print_line(screen_, f"Wrote the{partial} profile to {job.out}. {job.next_step}")


def _why_ended(reasons: Mapping[int, Reason]) -> str:
    """Return why the probe ended early, as a clause; empty if it is complete."""
    if not reasons:
        return ""
    rank, first = min(
        reasons.items(), key=lambda item: (item[1].kind in _CONSEQUENCES, item[1].kind == ScriptEnded.__name__, item[0])
    )
    if first.kind == ScriptEnded.__name__:
        return first.text
    if first.kind in ("KeyboardInterrupt", "Interrupted"):
        return "it was interrupted"
    if first.kind in _CONSEQUENCES:
        return first.text.rstrip(".")
    return f"the script failed on rank {rank} ({first.kind}: {first.text.rstrip('.')})"


def _report(job: Job, probe: Probe, error: BaseException) -> None:
    """Print why this worker's script failed; raise the exit of this process."""
    if isinstance(error, ProbeComplete):
        return
    if isinstance(error, ScriptEnded):
        if probe.own_strategy is None:
            where = job.script.name if job.script is not None else "the workload"
            message = (
                f"{where} ended without a call of tacit.attach, so there is nothing to probe; add "
                f"session = tacit.attach(model, optimizer, tacit.AllReduce()) before the training loop."
            )
            _exit(message, error, BAD_INPUT)
        return
    if isinstance(error, PeerLost) and (error.reason or "").startswith(ScriptEnded.__name__):
        return  # the data of another worker ended first
    if isinstance(error, KeyboardInterrupt):
        _exit("interrupted", error, INTERRUPTED)
    if type(error).__name__ in _CONSEQUENCES:
        _exit(describe(error), error, FAILED)
    sys.stderr.write("".join(_traceback(error, job)))
    _exit(f"the script failed: {type(error).__name__}: {describe(error)}", error, FAILED)


def _exit(message: str, error: BaseException, code: int) -> NoReturn:
    report_to_launcher(message, type(error).__name__, code)
    if os.environ["RANK"] == "0" or type(error).__name__ not in _CONSEQUENCES:
        complain(message)
    raise typer.Exit(code)


def _traceback(error: BaseException, job: Job) -> Iterator[str]:
    """Yield the traceback from the script's first frame on."""
    trace: Any = error.__traceback__
    while not job.debug and trace is not None and job.script is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == job.script.resolve():
            break
        trace = trace.tb_next
    yield from traceback.format_exception(type(error), error, trace or error.__traceback__)


@contextlib.contextmanager
def _silenced(shows_all: bool) -> Iterator[None]:
    """Drop what the script prints, unless ``shows_all``."""
    if shows_all:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C or SIGTERM and ignore later ones."""
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    """Let nothing interrupt the end of the probe: the launcher sends SIGTERM when another worker has failed."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
