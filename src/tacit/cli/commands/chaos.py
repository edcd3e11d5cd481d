"""``tacit chaos``: a training on this machine with faults, and a report of what became of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.chaos.drawing import draw_plan
from tacit.chaos.plan import KINDS, ChaosPlan
from tacit.chaos.report import counted, page
from tacit.chaos.run import check_run, run_chaos
from tacit.cli import run_folders
from tacit.cli.exit_messages import FAILED, explained
from tacit.cli.process_options import is_part
from tacit.core.strategy import shards_of
from tacit.errors import require
from tacit.registry.notation import parse

_DRAWN: Final = "Drawn faults"
_RUN: Final = "Run"
_KINDS: Final = "kill,stop,slow"
_EVERY: Final = 50
"""Steps between checkpoints where the plan fills the disk."""


@explained
def chaos_command(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="Plan of the faults.", show_default="drawn from --seed")
    ] = None,
    strategy: Annotated[
        str, typer.Option("-s", "--strategy", metavar="STRATEGY", help="Strategy to train with.")
    ] = "LocalSGD(period=Every(8))",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the run and of drawn faults.")] = 0,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of workers.", show_default="4", rich_help_panel=_DRAWN)
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="SECONDS",
            help="Length of the run, more than 15.",
            show_default="60",
            rich_help_panel=_DRAWN,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Mean time between faults.", show_default="5", rich_help_panel=_DRAWN),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"Kinds of faults: {', '.join(KINDS)}.",
            show_default=_KINDS,
            rich_help_panel=_DRAWN,
        ),
    ] = None,
    step_ms: Annotated[float, typer.Option(metavar="MS", help="Least time of a step.", rich_help_panel=_RUN)] = 20.0,
    undisturbed: Annotated[
        bool,
        typer.Option(
            "--undisturbed/--no-undisturbed", help="Make the same run without faults too.", rich_help_panel=_RUN
        ),
    ] = True,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Write the plan and start nothing.", rich_help_panel=_DRAWN)
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the report.", show_default="runs/chaos-DATE-TIME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that exists.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train on this machine while workers are killed, stopped, slowed or cut off.

    Starts a small training through tacit launch, and lets the faults of a
    plan happen to it: those of a file, or those that --seed draws. Kinds:
    kill (SIGKILL; the launcher starts the worker again), stop (SIGSTOP for
    a time), slow, cut (no packets pass; needs root), fill (the disk of the
    checkpoints is full; needs root). The report has recovery times, steps
    missed, the loss beside that of the same run without faults, and the
    same faults for the simulator. Ends with 1 if the run failed or hung, or
    if workers ended with different models.

    [bold]Examples[/]

    \b
      tacit chaos --seed 3 --workers 4 --for 60
      tacit chaos -s 'KAsync(k=1)' --seed 1 --workers 6 --for 120 --kinds kill
      tacit chaos --seed 3 --workers 4 --for 60 --draw-only --out plan
      tacit chaos plan/plan.toml -s 'SwarmSGD(local_steps=4)'
    """
    require(not is_part(), "tacit chaos cannot run inside a worker (RANK is set); unset RANK and WORLD_SIZE.")
    require(step_ms > 0, f"--step-ms {step_ms} must be positive.")
    parsed = parse(strategy, "strategies")
    if plan_file is None:
        require(for_s is None or for_s > 0, f"--for {for_s} must be a positive time in seconds.")
        require(interval is None or interval > 0, f"--interval {interval} must be a positive time in seconds.")
        wanted = [kind.strip() for kind in (_KINDS if kinds is None else kinds).split(",") if kind.strip()]
        unknown, known = [kind for kind in wanted if kind not in KINDS], ", ".join(KINDS)
        require(bool(wanted), f"--kinds '{kinds}' names no kind; give one or more of {known}, with commas between.")
        require(not unknown, f"--kinds {kinds}: {unknown[0] if unknown else ''} is unknown; known kinds are {known}.")
        plan = draw_plan(
            seed,
            workers=4 if workers is None else workers,
            for_s=60.0 if for_s is None else for_s,
            interval_s=5.0 if interval is None else interval,
            kinds=wanted,
            spared=range(shards_of(parsed)),
        )
    else:
        given = {"--workers": workers, "--for": for_s, "--interval": interval, "--kinds": kinds}
        ignored = [name for name, value in given.items() if value is not None]
        require(not ignored, f"{', '.join(ignored)} cannot be used with a plan, which sets it; change {plan_file}.")
        require(
            plan_file.suffix != ".py",
            f"{plan_file} is a script, and tacit chaos trains a small network of its own; give a plan of faults "
            f"(PLAN.toml) or none, and the strategy with -s. To start a script, type tacit launch {plan_file}.",
        )
        plan = ChaosPlan.read(plan_file)
    check_run(plan, parsed)
    folder = run_folders.claim(out, command="chaos", force=force)
    if draw_only:
        plan.write(folder / "plan.toml")
        typer.echo(f"{counted(len(plan.faults), 'fault')} in {folder / 'plan.toml'}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends the launcher, and with it the workers
    fills = any(fault.kind == "fill" for fault in plan.faults)
    run = run_chaos(
        plan,
        parsed,
        folder,
        seed=seed,
        step_s=step_ms / 1000,
        checkpoint_every=_EVERY if fills else 0,
        undisturbed=undisturbed,
        say=lambda text: typer.echo(f"tacit chaos: {text}", err=True),
    )
    typer.echo(page(run))
    typer.echo(f"The report is in {folder}.")
    if not run.is_fine:
        raise typer.Exit(FAILED)
