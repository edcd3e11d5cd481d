"""``tacit train``: one run on real processes; it launches them, or under torchrun runs one of them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

import typer

from tacit.cli import option_tables, options, process_options
from tacit.cli import run_folders as folders
from tacit.cli.commands.train_worker import CHECKPOINT, Plan, report_end, run_worker, what_is_left
from tacit.cli.exit_messages import BAD_INPUT, FAILED, INTERRUPTED, complain, explained
from tacit.cli.planned_runs import plan_notes
from tacit.cli.process_options import command_words, is_part
from tacit.cli.screens.terminal import console, print_notes
from tacit.cli.settings import (
    changes,
    check_device,
    import_notes,
    read_file,
    renamed_value_notes,
    settle,
    train_settings,
)
from tacit.errors import TacitError, require
from tacit.planning.files import settings_of
from tacit.record.files import toml_text, write_text
from tacit.registry.tables import Table
from tacit.runtime.launch import launch, torchrun_line
from tacit.runtime.launcher.machines import RunSettings
from tacit.runtime.launcher.reports import FailedWorker
from tacit.runtime.launcher.store import LOOPBACK
from tacit.runtime.messaging.secret import SECRET_FILE, find_secret
from tacit.session.checkpoints import step_of

_DEFAULT_WORKERS: Final = 2
_TRAINED: Final = ("workload", "strategy", "seed", "optimizer", "lr", "momentum", "weight_decay", "schedule")
"""Settings that must stay the same when a finished run is extended."""


@explained
def train_command(
    context: typer.Context,
    workload: options.Workload = None,
    strategy: options.Strategy = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    config: options.Config = None,
    plan_file: process_options.PlanFile = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    progress: process_options.Progress = False,
    workers: process_options.Workers = None,
    min_workers: process_options.MinWorkers = None,
    max_restarts: process_options.MaxRestarts = None,
    checkpoint_every: process_options.CheckpointEvery = None,
    resume: process_options.Resume = None,
    timeout: process_options.Timeout = None,
    interface: process_options.Interface = None,
    security: process_options.Security = None,
    server: process_options.Server = None,
    host: process_options.Host = None,
    nodes: process_options.Nodes = None,
    print_command: process_options.PrintCommand = False,
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
    """Run one strategy on a built-in workload, on real processes.

    Starts the workers as tacit launch does. Writes the same files as tacit
    simulate: the run (history, trace, model), run.toml and report.html.
    `tacit report` draws measured and simulated runs in one page. If
    torchrun starts this command, each process runs one worker.

    [bold]Examples[/]

    \b
      tacit train -s 'LocalSGD(period=Every(8))' --workers 4 --steps 500 --out runs/real
      tacit train --config runs/real/run.toml --seed 1 --checkpoint-every 100
      tacit train --resume runs/real --workers 3
      tacit train --plan plan.toml --steps 500
      tacit train -s LocalSGD --workers 8 --nodes 2 --print-command
    """
    given = {name: value for name, value in locals().items() if name != "context"}
    launchers = [name for name in ("min_workers", "max_restarts", "host") if given[name] is not None]
    if launchers and (print_command or is_part()):
        option = f"--{launchers[0].replace('_', '-')}"
        raise ValueError(f"{option} is an option of the launcher; leave it out, and give it to tacit launch.")
    if print_command:
        _print_command(context, given)
    elif is_part():
        _take_part(given)
    else:
        require(
            nodes in (None, 1),
            f"--nodes {nodes} needs --print-command; run the command that it prints on each machine.",
        )
        _start(given)


def _start(given: dict[str, Any]) -> None:
    """Launch the workers; if the run fails, print why."""
    screen = console(given["quiet"])
    if given["resume"] is not None and (given["resume"] / "run.toml").exists():
        print_notes(import_notes(given["resume"] / "run.toml"), screen)
    plan = _plan(given)
    launched = RunSettings.new(plan.settings.cluster.workers, given["min_workers"], given["max_restarts"])
    _check_remote(plan, given["host"])
    is_elastic = launched.max_restarts > 0 or launched.min_workers < launched.total_workers
    if given["json_file"] is not None:
        folders.writable(given["json_file"])
    folder = _prepare(plan, given)
    notes = [*option_tables.alias_notes(given), *plan.notes]
    print_notes([*notes, *_notes(plan, folder, given["resume"] is not None)], screen)
    arguments = ["tacit", "train", "--resume", str(folder)]
    arguments += ["--json", str(given["json_file"])] if given["json_file"] is not None else []
    arguments += [flag for flag in ("--quiet", "--debug", "--progress") if given[flag.removeprefix("--")]]
    try:
        outcome = launch(
            arguments,
            launched,
            threads=plan.settings.threads,
            logs=folder / "logs",
            shows_all=given["debug"],
            host=given["host"] or LOOPBACK,
            server=["tacit", "serve", str(folder)] if plan.train.get("server") == "process" else None,
            say=(lambda text: print_notes([f"{text}."], screen)) if is_elastic else None,
        )
    except KeyboardInterrupt:
        complain(f"interrupted. {what_is_left(folder)}")
        raise typer.Exit(INTERRUPTED) from None
    ended = outcome.failed
    if not outcome.has_succeeded:
        first = min(ended, key=lambda one: (not one.error, one.kind == "PeerLost", one.rank))
        code = first.exit_code if first.exit_code is not None and first.exit_code > 0 else FAILED
        if code == BAD_INPUT and given["resume"] is None:
            (folder / "run.toml").unlink()  # nothing has run: the corrected command may use the folder
        complain(f"{_what_ended(ended, first, folder)} {what_is_left(folder)}".strip())
        raise typer.Exit(code)


def _check_remote(plan: Plan, host: str | None) -> None:
    """Raise if the server runs on another machine, which could neither reach the store nor know the secret."""
    require(
        plan.train.get("server") != "remote" or (host is not None and find_secret() is not None),
        f"--server remote needs --host ADDRESS, at which the server's machine reaches this one, and a secret that both "
        f"have: (umask 077; openssl rand -hex 32 > FILE), copy FILE, and set {SECRET_FILE}=FILE for both commands.",
    )


def _notes(plan: Plan, folder: Path, is_resumed: bool) -> list[str]:
    """Return notes on what a user might not expect."""
    if is_resumed:
        return (
            []
            if step_of(folder / CHECKPOINT) is not None
            else [f"{folder} holds no checkpoint; the run starts from step 0."]
        )
    ignored = [key for key in plan.cluster if key != "workers"]
    text = f"{', '.join(ignored)} of [cluster] are settings of the simulator; real processes ignore them."
    notes = plan_notes(plan.train, plan.settings.strategies[0], plan.settings.cluster.workers)
    return [*([text] if ignored else []), *notes]


def _take_part(given: dict[str, Any]) -> None:
    """Run the worker for which torchrun started this process."""
    folder: Path | None = None
    try:
        plan, size = _plan(given), int(os.environ["WORLD_SIZE"])
        require(
            given["workers"] in (None, size),
            f"--workers {given['workers']} must be the number of processes, and torchrun started {size}; "
            f"leave out --workers.",
        )
        require(
            given["out"] is not None or given["resume"] is not None,
            "under torchrun all processes must use the same folder; give --out FOLDER or --resume FOLDER.",
        )
        folder = _prepare(plan, given) if os.environ["RANK"] == "0" else given["out"] or given["resume"]
        run_worker(plan, folder, json_file=given["json_file"], quiet=given["quiet"], shows_progress=given["progress"])
    except (ValueError, TypeError, TacitError, OSError, KeyboardInterrupt) as error:
        if given["debug"]:
            raise
        raise report_end(error, folder) from None


def _plan(given: dict[str, Any]) -> Plan:
    """Return the run that the options and the TOML file describe."""
    beneath: Table = {"strategies": ["AllReduce()"], "cluster": {"workers": _DEFAULT_WORKERS}}
    config: Path | None = given["config"]
    if given["resume"] is not None:
        require(
            given["out"] is None and config is None and not given["force"],
            "--resume already names the folder; leave out --out, --config and --force.",
        )
        config = given["resume"] / "run.toml"
        require(
            config.exists(),
            f"--resume {given['resume']} must hold a run, and it has no run.toml; "
            f"give a folder that tacit train wrote.",
        )
    given_file = {} if config is None else read_file(config, single=True)
    planned = {} if given["plan_file"] is None else settings_of(given["plan_file"])
    tables = [beneath, given_file, planned, option_tables.table_from(given)]
    cluster = {key: value for table in tables for key, value in table.get("cluster", {}).items()}
    if is_part():
        cluster["workers"] = int(os.environ["WORLD_SIZE"])
    settings = settle(*({**t, "cluster": {}} for t in tables), {"cluster": {"workers": cluster["workers"]}})
    notes = tuple(renamed_value_notes(*tables))
    plan = Plan(settings=settings, cluster=cluster, train=train_settings(*tables), notes=notes)
    if given["resume"] is not None:
        _check_resumed(given["resume"], plan)
    check_device(settings)
    return plan


def _check_resumed(folder: Path, plan: Plan) -> None:
    """Raise ``ValueError`` if the run cannot be continued with these settings, so that its record stays true."""
    steps, made = plan.settings.steps, step_of(folder / CHECKPOINT)
    require(
        made is None or made <= steps,
        f"--steps {steps} must be at least {made or 0:,}, the step of the checkpoint in {folder}; give more --steps, "
        f"or start another run: tacit train --config {folder / 'run.toml'} --steps {steps} --out FOLDER.",
    )
    if not (folder / "run.json").exists():
        return
    described = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if described["status"] == "finished":
        done = f"the run in {folder} is finished after {described['steps']} steps"
        require(described["steps"] < steps, f"{done}; give a larger --steps to continue from its checkpoint.")
        require(
            made is not None,
            f"{done} without a checkpoint to continue from; run it again: "
            f"tacit train --config {folder / 'run.toml'} --steps {steps} --out FOLDER.",
        )
        trained = {name: described["config"].get(name) for name in _TRAINED}
        others = ", ".join(changes(trained, plan.table()))
        require(
            not others,
            f"{done}, and an extension must keep its settings: {others}; change only --steps and --workers, "
            f"or start another run: tacit train --config {folder / 'run.toml'} … --out FOLDER.",
        )


def _prepare(plan: Plan, given: dict[str, Any]) -> Path:
    """Return the run's folder with run.toml in it, which ``--resume`` needs if the run fails."""
    folder: Path = given["resume"] or folders.claim(given["out"], command="train", force=given["force"])
    comment = "tacit train --config run.toml repeats this run."
    write_text(folder / "run.toml", toml_text(plan.table(), comment=comment))
    return folder


def _what_ended(ended: list[FailedWorker], first: FailedWorker, folder: Path) -> str:
    """Return a sentence or two on which worker ended the run, and why."""
    causes = [first.error] if first.error else []
    for one in ended:
        if (
            one.signal is not None and not one.error and one.signal != "SIGTERM"
        ):  # which the launcher sends to the remaining workers
            hint = " (the kernel sends it when memory runs out)" if one.signal == "SIGKILL" else ""
            who = "The server" if one.is_server else f"Worker {one.rank}"
            causes.append(f"{who} was killed by {one.signal}{hint}.")
    if not causes:
        last = first.output.splitlines()[-1] if first.output else f"exit code {first.exit_code}"
        causes.append(f"worker {first.rank} failed: {last.rstrip('.')}. Its output is in {folder / 'logs'}.")
    return " ".join(causes)


def _print_command(context: typer.Context, given: dict[str, Any]) -> None:
    plan, nodes = _plan(given), given["nodes"] or 1
    workers = plan.settings.cluster.workers
    require(
        nodes >= 1 and workers % nodes == 0,
        f"--workers {workers} must be a multiple of --nodes {nodes}; every machine runs the same number of workers.",
    )
    if given["out"] is None and given["resume"] is None:
        given["out"] = folders.fresh("train")
    words = command_words(context, given, left_out=("nodes", "print_command", "workers"))
    folder = given["out"] or given["resume"]
    typer.echo(torchrun_line(["tacit", "train", *words], workers, nodes, socket.gethostname(), folder.name))
