"""``tacit probe``: short measurements on real processes, from which a profile is made."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tacit.cli import options, process_options, units
from tacit.cli.commands.probe_worker import Job, run_probe
from tacit.cli.exit_messages import FAILED, INTERRUPTED, complain, explained
from tacit.cli.option_tables import table_from
from tacit.cli.process_options import command_words, is_part
from tacit.cli.screens.terminal import console, print_line
from tacit.cli.settings import check_device, settle
from tacit.errors import FolderExists, require
from tacit.profiles.profile import FILE
from tacit.runtime.launch import launch
from tacit.runtime.launcher.machines import RunSettings
from tacit.runtime.launcher.reports import FailedWorker

_DEFAULT_WORKERS: Final = 2
_DEFAULT_OUT: Final = Path("profile")
_DEFAULT_BUDGET: Final = "60s"


@explained
def probe_command(
    context: typer.Context,
    script: options.Script = None,
    arguments: options.ScriptArguments = None,
    workload: options.Workload = None,
    seed: options.Seed = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    workers: process_options.Workers = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Longest time of all measurements, from tacit.attach on: 60s, 2min. What does not fit is left out.",
        ),
    ] = _DEFAULT_BUDGET,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the profile.", rich_help_panel="Output")
    ] = _DEFAULT_OUT,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier profile in --out.", rich_help_panel="Output")
    ] = False,
    quiet: options.Quiet = False,
    device: options.Device = None,
    threads: options.Threads = None,
    debug: options.Debug = False,
) -> None:
    """Measure steps, rounds and network for a training script or workload.

    Runs the script on real processes with a strategy that measures in
    place of the script's own, and ends it after a minute at most. The
    script is not changed, and its session writes no checkpoints and no
    logs. Writes profile.toml and files of step times, for tacit simulate
    --cluster. If torchrun starts this command, each process probes one
    worker.

    [bold]Examples[/]

    \b
      tacit probe train.py --workers 2 -- --lr 0.1
      torchrun --nnodes 4 … -m tacit probe train.py --out profile
      tacit probe --workload 'digits(model="mlp")' --workers 2 --budget 20s
      tacit simulate train.py --cluster profile -s 'LocalSGD(period=Every(8))'
    """
    given = {name: value for name, value in locals().items() if name != "context"}
    job = _job(context, given)
    if is_part():
        _take_part(job, given)
    else:
        _start(context, job, given)


def _job(context: typer.Context, given: dict[str, Any]) -> Job:
    """Return what the options describe, or raise if it cannot be probed."""
    script: Path | None = given["script"]
    for name in ("workload", "seed", "optimizer", "lr", "momentum", "weight_decay", "device"):
        option = f"--{name.replace('_', '-')}"
        require(
            script is None or given[name] is None,
            f"{option} cannot be used with a script, which creates its own model and optimizer; leave out {option}, "
            f"or pass it to the script after --.",
        )
    require(script is None or script.is_file(), f"the script {script} does not exist; give the path of a script.")
    budget_s = units.seconds(given["budget"])
    require(budget_s > 0, f"--budget {given['budget']} must be positive; 60s is usually enough.")
    asked = _DEFAULT_WORKERS if given["workers"] is None else given["workers"]
    workers = int(os.environ["WORLD_SIZE"]) if is_part() else asked
    require(workers >= 1, f"--workers {workers} must be at least 1.")
    beneath = {"strategies": ["AllReduce()"], "cluster": {"workers": workers}}
    settings = settle(beneath, {**table_from({**given, "workers": None}), "cluster": {}})
    check_device(settings)
    return Job(
        script=script,
        arguments=tuple(given["arguments"] or ()),
        settings=settings,
        budget_s=budget_s,
        out=given["out"],
        quiet=given["quiet"],
        debug=given["debug"],
        next_step=_next_step(context, given),
    )


def _next_step(context: typer.Context, given: dict[str, Any]) -> str:
    """Return a sentence with a command that uses the profile."""
    commands: dict[str, Any] = getattr(context.find_root().command, "commands", {})
    name, option = ("plan", "--profile") if "plan" in commands else ("simulate", "--cluster")
    takes = [parameter.name for parameter in commands[name].params] if name in commands else []
    words = ["tacit", name]
    if given["script"] is not None and "script" in takes:
        words.append(str(given["script"]))
    if given["workload"] is not None:
        words += ["--workload", given["workload"]]
    rest = ["--target-loss", "LOSS"] if name == "plan" else []
    rest += ["--", *given["arguments"]] if given["script"] is not None and given["arguments"] else []
    return f"Next: {shlex.join([*words, option, str(given['out']), *rest])}"


def _take_part(job: Job, given: dict[str, Any]) -> None:
    """Run the worker for which torchrun started this process."""
    size = job.settings.cluster.workers
    require(
        given["workers"] in (None, size),
        f"--workers {given['workers']} must be the number of processes, and torchrun started {size}; "
        f"leave out --workers.",
    )
    if os.environ["RANK"] == "0":
        _check_folder(job.out, given["force"])
    run_probe(job)


def _start(context: typer.Context, job: Job, given: dict[str, Any]) -> None:
    """Launch the workers; if the probe fails, print why."""
    _check_folder(job.out, given["force"])
    words = command_words(context, given, left_out=("workers", "force", "script", "arguments"))
    script = [] if job.script is None else [str(job.script)]
    rest = ["--", *job.arguments] if job.arguments else []
    arguments = ["tacit", "probe", *script, *words, "--force", *rest]
    what, size = job.script or given["workload"] or "the workload", job.settings.cluster.workers
    print_line(
        console(job.quiet),
        f"probe: starts {what} on {size} worker{'s' * (size > 1)}; from tacit.attach on it measures for at most "
        f"{given['budget']}.",
    )
    with tempfile.TemporaryDirectory(prefix="tacit-probe-") as scratch:
        try:
            ended = launch(
                arguments,
                RunSettings.new(job.settings.cluster.workers),
                threads=job.settings.threads,
                logs=Path(scratch) / "logs",
                shows_all=job.debug,
            ).failed
        except KeyboardInterrupt:
            too_early = (
                "interrupted. No profile was written, because no steps were measured yet: the script had not reached "
                "tacit.attach and its first steps. Start the probe again and wait for them; data or arguments that "
                "load sooner help."
            )
            complain(f"interrupted. {_what_is_left(job.out)}" if (job.out / FILE).exists() else too_early)
            raise typer.Exit(INTERRUPTED) from None
    if ended:
        _explain(ended, job)


def _explain(ended: list[FailedWorker], job: Job) -> None:
    """Print the traceback of the worker that failed first, and its error; exit with its code."""
    first = min(ended, key=lambda one: (not one.error, one.kind in ("PeerLost", "KeyboardInterrupt"), one.rank))
    if first.output and not job.debug:
        typer.echo(first.output, err=True)
    cause = first.error or f"exit code {first.exit_code}"
    complain(f"worker {first.rank}: {cause.rstrip('.')}. {_what_is_left(job.out)}")
    raise typer.Exit(first.exit_code if first.exit_code is not None and first.exit_code > 0 else FAILED)


def _what_is_left(out: Path) -> str:
    return f"The partial profile is in {out}." if (out / FILE).exists() else "No profile was written."


def _check_folder(out: Path, force: bool) -> None:
    """Raise if the folder holds a profile that must stay; otherwise remove an earlier one."""
    if out.exists() and not out.is_dir():
        raise FolderExists(out, "it is a file; choose another --out.")
    if (out / FILE).exists():
        if not force:
            raise FolderExists(out, "choose another --out, or replace its profile with --force.")
        for file in (FILE, *(path.name for path in out.glob("step-times-*.txt"))):
            (out / file).unlink(missing_ok=True)
