"""``tacit plan``: which strategy reaches a loss first on a measured cluster, before the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer

from tacit.cli import options, units
from tacit.cli import run_folders as folders
from tacit.cli.exit_messages import INTERRUPTED, complain, explained
from tacit.cli.option_tables import settings_from
from tacit.cli.plan_options import check_extent, check_goal, check_objective
from tacit.cli.screens.map_screen import check_map, keep_map, two_axes
from tacit.cli.screens.plan_screen import PlanScreen, print_next, print_plan
from tacit.cli.screens.terminal import console
from tacit.cli.scripts import refuse_options
from tacit.cli.settings import check_device, parsed_strategy
from tacit.compare.runners import LOCAL, check_executor, default_jobs
from tacit.errors import TacitError, require
from tacit.planning.ledger import Ledger, ledger_beside
from tacit.planning.maps import plan_map
from tacit.planning.plan import Plan
from tacit.planning.planner import OBJECTIVES, plan
from tacit.profiles.profile import Profile
from tacit.record.files import write_text

STAYS_WITH_DDP: Final = 3
_PLAN: Final = "Plan"
_PRICES: Final = "Prices"
_OF_WORKLOAD: Final = ("optimizer", "lr", "momentum", "weight_decay", "schedule", "engine", "device")


@explained
def plan_command(
    script: options.Script = None,
    arguments: options.ScriptArguments = None,
    *,
    profile: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Profile: a folder of tacit probe, the folder of a run on real processes, or a TOML file.",
            rich_help_panel=_PLAN,
        ),
    ],
    workload: options.Workload = None,
    target_loss: Annotated[
        float | None,
        typer.Option(metavar="LOSS", help="Loss to reach in the shortest time.", rich_help_panel=_PLAN),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Instead of a loss: the time in which to get lowest.", rich_help_panel=_PLAN),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(metavar="WHAT", help=f"What to minimise: {', '.join(OBJECTIVES)}.", rich_help_panel=_PLAN),
    ] = "time",
    price_per_worker_hour: Annotated[
        float,
        typer.Option(
            metavar="COST/h",
            help="Of one worker for one hour, in any currency, with --objective cost.",
            rich_help_panel=_PRICES,
        ),
    ] = 0.0,
    price_per_gigabyte: Annotated[
        float,
        typer.Option(
            metavar="COST/GB",
            help="Of 10⁹ bytes sent, in the same currency, with --objective cost.",
            rich_help_panel=_PRICES,
        ),
    ] = 0.0,
    budget: Annotated[
        str,
        typer.Option(metavar="TIME", help="No further simulations start after this time.", rich_help_panel=_PLAN),
    ] = "5min",
    pilot: Annotated[
        bool,
        typer.Option(
            "--pilot",
            help="Check the three best strategies in real runs of 200 steps, at most 30 s each, on this machine.",
            rich_help_panel=_PLAN,
        ),
    ] = False,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="STRATEGY",
            help="Strategy to consider besides DDP; see `tacit list strategies`. Repeatable. "
            "A script's own strategy is always considered.",
            show_default="about twenty, on several sets of workers",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    own: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY",
            help="Strategy that you use today; it stays in the table.",
            show_default="of a script, its own",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune/--no-tune", help="Also try other learning rates.", rich_help_panel=_PLAN)
    ] = True,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Largest number of steps of a simulated training.",
            show_default="2000; of a script, its own",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…", help="Number of seeds, or a list of seeds.", show_default="3", rich_help_panel=_PLAN
        ),
    ] = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    map_axes: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--map",
            metavar="AXIS AXIS",
            callback=two_axes,
            is_eager=True,
            help="Instead of a plan, map which strategy is fastest where. Two axes NAME=LOW:HIGH[:COUNT] of workers, "
            "bandwidth, latency, compute and slow. All strategies use your learning rate.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder that keeps loss curves for later plans.", rich_help_panel=_PLAN),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE.toml", help="File for the plan.", rich_help_panel=_PLAN)] = Path(
        "plan.toml"
    ),
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    engine: options.Engine = None,
    device: options.Device = None,
    threads: options.Threads = None,
    jobs: options.Jobs = None,
    executor: options.Executor = LOCAL,
    debug: options.Debug = False,
) -> None:
    """Predict which strategy reaches a loss first on a measured cluster.

    Trains the script, unmodified, or a workload with each candidate in the
    simulator, with the profile's step times, network and costs,
    and writes plan.toml, plan.json and plan.html. The table has a column for your
    learning rate and one for the best rate of each strategy. If nothing is
    clearly faster than DDP, the plan says so, with exit code 3.

    [bold]Examples[/]

    \b
      tacit plan train.py --profile profile --target-loss 0.9 -- --epochs 30
      tacit plan --profile runs/real --target-loss 0.3
      tacit plan --profile hand.toml --workload 'digits(model="cnn")' --target-loss 0.5 --budget 60s
      tacit plan --profile profile                        paces only, in seconds
      tacit plan --profile profile --target-loss 0.3 --map workers=2:64 bandwidth=10Mbit/s:10Gbit/s
    """
    check_executor(executor, jobs)
    require(
        script is None or map_axes is None,
        "--map needs a workload, as scripts take too long for a map; leave out --map, or use plan.map in Python.",
    )
    given: dict[str, Any] = {**locals(), "config": None, "lr": lr, "target": None, "cluster": None, "seed": None}
    given |= {"strategies": None, "tune": None, "evaluate_every": None, "timing_only": None, "steps": None}
    if script is not None:
        refuse_options(given)
    settings = settings_from(given, single=False)
    check_device(settings)
    check_goal(target_loss, within, pilot=pilot)
    check_objective(objective, target_loss, within, price_per_worker_hour, price_per_gigabyte)
    check_extent(budget, steps, settings.seeds if seeds is not None else None)
    measured, screen = Profile.load(profile), console(quiet)
    wanted = None if strategies is None else [parsed_strategy(text) for text in strategies]
    axes = None if map_axes is None else check_map(map_axes, out, target_loss, objective, force=force)
    if axes is None and out.exists() and not force:
        raise TacitError(f"{out} exists; choose another --out, or replace it with --force.")
    if json_file is not None:
        folders.writable(json_file)
    torch.set_num_threads(settings.threads)
    of_workload = {name: getattr(settings, name) for name in _OF_WORKLOAD}
    with PlanScreen(screen, target_loss) as watcher:
        shared = dict[str, Any](
            target_loss=target_loss,
            budget_s=units.seconds(budget),
            strategies=wanted,
            own=None if own is None else parsed_strategy(own),
            **of_workload,
            threads=settings.threads,
            jobs=jobs or (default_jobs(settings.threads, settings.device) if executor == LOCAL else None),
            executor=executor,
            cache=None if cache is None else str(cache),
            ledger=Ledger(ledger_beside(out)),
            watcher=watcher,
        )
        if axes is not None:
            several: dict[str, Any] = {"seeds": settings.seeds} if seeds is not None else {}
            mapped = plan_map(measured, settings.workload, axes, steps=steps or 2000, **shared, **several)
        else:
            made = plan(
                measured,
                settings.workload if script is None else script,
                arguments or (),
                steps=steps,
                pilot=pilot,
                within_s=None if within is None else units.seconds(within),
                objective=objective,
                price_per_worker_hour=price_per_worker_hour,
                price_per_gigabyte=price_per_gigabyte,
                tune=tune,
                seeds=settings.seeds if seeds is not None else (0, 1, 2),
                **shared,
            )
    if axes is not None:
        keep_map(mapped, out, screen, json_file)
        return
    if json_file is not None:
        write_text(json_file, json.dumps(made.as_json(), indent=1) + "\n")
    is_out_of_reach = target_loss is not None and made.best.shortest_s is None and _is_searched(made)
    print_plan(made, screen, recommends=not is_out_of_reach)
    if is_out_of_reach:
        complain(f"{made.why} No plan was written.")
        raise typer.Exit(1)
    made.save(out)
    print_next(made, out, screen)
    if made.is_interrupted:
        complain(f"interrupted. The plan in {out} has only what was simulated until then.")
        raise typer.Exit(INTERRUPTED)
    if made.stays_with_ddp:
        raise typer.Exit(STAYS_WITH_DDP)


def _is_searched(made: Plan) -> bool:
    """Whether losses were simulated, so that a plan without times means a target that is out of reach."""
    return any(row.trials for row in made.rows) and not made.is_interrupted
