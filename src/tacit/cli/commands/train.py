"""``tacit train``: one run on real processes of this machine, or this process's part in one."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

import typer

from tacit.cli import options
from tacit.cli import run_folders as folders
from tacit.cli.commands.train_worker import CHECKPOINT, Plan, end_part, take_part, what_is_left
from tacit.cli.exit_messages import BAD_INPUT, FAILED, INTERRUPTED, complain, explained
from tacit.cli.settings import Table, changes, check_device, import_notes, read_file, settle, train_settings
from tacit.cli.terminal import console, print_notes
from tacit.errors import TacitError, require
from tacit.record.files import toml_text, write_text
from tacit.runtime.launch import FailedWorker, launch, torchrun_line
from tacit.session.checkpoints import step_of

_DEFAULT_WORKERS: Final = 2
_TRAINED: Final = ("workload", "strategy", "seed", "optimizer", "lr", "momentum", "weight_decay", "schedule")
"""Settings that a finished run keeps when it is extended."""


@explained
def train_command(
    context: typer.Context,
    workload: options.Workload = None,
    strategy: options.Strategy = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    config: options.Config = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    workers: options.Processes = None,
    checkpoint_every: options.CheckpointEvery = None,
    resume: options.ResumeRun = None,
    timeout: options.Timeout = None,
    interface: options.Interface = None,
    security: options.Security = None,
    server: options.Server = None,
    nodes: options.Nodes = None,
    print_command: options.PrintCommand = False,
    out: options.Out = None,
    force: options.Force = False,
    json_file: options.Json = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    evaluate_every: options.EvaluateEvery = None,
    device: options.Device = None,
    threads: options.Threads = None,
    debug: options.Debug = False,
) -> None:
    """Run one strategy on real processes: a built-in workload, torchrun and all.

    Writes what tacit simulate writes: the run (history, trace, model),
    run.toml and report.html, so that `tacit report` can draw predicted
    beside measured. Started by torchrun it takes part instead of launching.

    [bold]Examples[/]

    \b
      tacit train -s 'LocalSGD(period=Every(8))' --workers 4 --steps 500 --out runs/real
      tacit train --config runs/real/run.toml --seed 1 --checkpoint-every 100
      tacit train --resume runs/real --workers 3
      tacit train -s LocalSGD --workers 8 --nodes 2 --print-command
    """
    given = {name: value for name, value in locals().items() if name != "context"}
    if print_command:
        _print_command(context, given)
    elif _is_part():
        _take_part(given)
    else:
        require(
            nodes in (None, 1), f"--nodes {nodes}: add --print-command, and type the line it prints on each machine."
        )
        _start(given)


def _start(given: dict[str, Any]) -> None:
    """Launch the workers, and say how they ended if that was not well."""
    screen = console(given["quiet"])
    if given["resume"] is not None and (given["resume"] / "run.toml").exists():
        print_notes(import_notes(given["resume"] / "run.toml"), screen)
    plan = _plan(given)
    if given["json_file"] is not None:
        folders.writable(given["json_file"])
    folder = _prepare(plan, given)
    print_notes([*options.alias_notes(given), *_notes(plan, folder, given["resume"] is not None)], screen)
    arguments = ["tacit", "train", "--resume", str(folder)]
    arguments += ["--json", str(given["json_file"])] if given["json_file"] is not None else []
    arguments += [flag for flag in ("--quiet", "--debug") if given[flag.removeprefix("--")]]
    settings = plan.settings
    try:
        ended = launch(
            arguments,
            settings.cluster.workers,
            threads=settings.threads,
            logs=folder / "logs",
            shows_all=given["debug"],
        )
    except KeyboardInterrupt:
        complain(f"interrupted. {what_is_left(folder)}")
        raise typer.Exit(INTERRUPTED) from None
    if ended:
        spokesman = min(ended, key=lambda one: (not one.error, one.kind == "PeerLost", one.rank))
        code = spokesman.exit_code if spokesman.exit_code is not None and spokesman.exit_code > 0 else FAILED
        if code == BAD_INPUT and given["resume"] is None:
            (folder / "run.toml").unlink()  # nothing was begun: the same command, mended, may use the folder
        complain(f"{_what_ended(ended, spokesman, folder)} {what_is_left(folder)}".strip())
        raise typer.Exit(code)


def _notes(plan: Plan, folder: Path, is_resumed: bool) -> list[str]:
    """Return what a user might not expect."""
    if is_resumed:
        return (
            [] if step_of(folder / CHECKPOINT) is not None else [f"{folder} holds no checkpoint; the run begins anew."]
        )
    ignored = [key for key in plan.cluster if key != "workers"]
    text = f"{', '.join(ignored)} of [cluster] are for the simulator; real processes take the time they take."
    return [text] if ignored else []


def _take_part(given: dict[str, Any]) -> None:
    """Play the part that torchrun has given to this process."""
    folder: Path | None = None
    try:
        plan, size = _plan(given), int(os.environ["WORLD_SIZE"])
        require(
            given["workers"] in (None, size),
            f"--workers {given['workers']}, but torchrun started {size} processes; leave --workers out.",
        )
        require(
            given["out"] is not None or given["resume"] is not None,
            "under torchrun all processes must name one folder: give --out FOLDER, or --resume FOLDER.",
        )
        folder = _prepare(plan, given) if os.environ["RANK"] == "0" else given["out"] or given["resume"]
        take_part(plan, folder, json_file=given["json_file"], quiet=given["quiet"])
    except (ValueError, TypeError, TacitError, OSError, KeyboardInterrupt) as error:
        if given["debug"]:
            raise
        raise end_part(error, folder) from None


def _plan(given: dict[str, Any]) -> Plan:
    """Return what options and file ask for."""
    beneath: Table = {"strategies": ["AllReduce()"], "cluster": {"workers": _DEFAULT_WORKERS}}
    config: Path | None = given["config"]
    if given["resume"] is not None:
        require(
            given["out"] is None and config is None and not given["force"],
            "--resume names the folder; leave out --out, --config and --force.",
        )
        config = given["resume"] / "run.toml"
        require(config.exists(), f"{given['resume']} holds no run to go on with: it has no run.toml.")
    tables = [beneath, read_file(config, single=True) if config is not None else {}, options.table_from(given)]
    cluster = {key: value for table in tables for key, value in table.get("cluster", {}).items()}
    if _is_part():
        cluster["workers"] = int(os.environ["WORLD_SIZE"])
    settings = settle(*({**t, "cluster": {}} for t in tables), {"cluster": {"workers": cluster["workers"]}})
    plan = Plan(settings=settings, cluster=cluster, train=train_settings(*tables))
    if given["resume"] is not None:
        _check_resumed(given["resume"], plan)
    check_device(settings)
    return plan


def _check_resumed(folder: Path, plan: Plan) -> None:
    """Refuse to go on beyond --steps, or with a finished run unless there is more to do and a checkpoint; its record
    must stay true.
    """
    steps, made = plan.settings.steps, step_of(folder / CHECKPOINT)
    require(
        made is None or made <= steps,
        f"--steps {steps}: the checkpoint in {folder} is of step {made or 0:,}, which is beyond; give at least as many --steps, "
        f"or begin another run: tacit train --config {folder / 'run.toml'} --steps {steps} --out FOLDER.",
    )
    if not (folder / "run.json").exists():
        return
    described = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if described["status"] == "finished":
        done = f"the run in {folder} is finished after {described['steps']} steps"
        require(described["steps"] < steps, f"{done}; a larger --steps goes on from its checkpoint.")
        require(
            made is not None,
            f"{done} and left no checkpoint to go on from; tacit train --config {folder / 'run.toml'} runs it again.",
        )
        trained = {name: described["config"].get(name) for name in _TRAINED}
        others = ", ".join(changes(trained, plan.table()))
        require(
            not others,
            f"the run in {folder} is finished, and its record would no longer be true: {others}; a larger --steps and another --workers "
            f"may extend it. For other settings: tacit train --config {folder / 'run.toml'} … --out FOLDER.",
        )


def _prepare(plan: Plan, given: dict[str, Any]) -> Path:
    """Return the run's folder, with the run.toml that ``--resume`` needs whatever happens."""
    folder: Path = given["resume"] or folders.claim(given["out"], command="train", force=given["force"])
    comment = "tacit train --config run.toml repeats this run."
    write_text(folder / "run.toml", toml_text(plan.table(), comment=comment))
    return folder


def _what_ended(ended: list[FailedWorker], spokesman: FailedWorker, folder: Path) -> str:
    """Return in a sentence or two who ended the run."""
    said = [spokesman.error] if spokesman.error else []
    for one in ended:
        if one.signal is not None and one.signal != "SIGTERM":  # which the launcher itself sends to those who are left
            hint = " (the kernel does that when memory runs out)" if one.signal == "SIGKILL" else ""
            said.append(f"Worker {one.rank} was ended by {one.signal}{hint}.")
    if not said:
        last = spokesman.output.splitlines()[-1] if spokesman.output else f"exit code {spokesman.exit_code}"
        said.append(f"worker {spokesman.rank} failed: {last.rstrip('.')}. All it said is in {folder / 'logs'}.")
    return " ".join(said)


def _print_command(context: typer.Context, given: dict[str, Any]) -> None:
    plan, nodes = _plan(given), given["nodes"] or 1
    workers = plan.settings.cluster.workers
    require(
        nodes >= 1 and workers % nodes == 0,
        f"--workers {workers} on --nodes {nodes}: every machine must get as many; choose a multiple.",
    )
    if given["out"] is None and given["resume"] is None:
        given["out"] = folders.fresh("train")
    left_out = ("nodes", "print_command", "workers")
    arguments = ["tacit", "train"]
    for parameter in context.command.params:
        value = given.get(parameter.name or "")
        if value not in (None, False) and parameter.name not in left_out:
            arguments += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    folder = given["out"] or given["resume"]
    typer.echo(torchrun_line(arguments, workers, nodes, socket.gethostname(), folder.name))


def _is_part() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
