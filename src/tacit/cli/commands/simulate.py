"""``tacit simulate``: one simulated run, saved with the settings that reproduce it."""

from __future__ import annotations

import torch
import typer
from rich.console import Console

from tacit.cli import option_tables, options
from tacit.cli import run_folders as folders
from tacit.cli.exit_messages import FAILED, INTERRUPTED, complain, describe, explained
from tacit.cli.option_tables import settings_from
from tacit.cli.save_run import keep
from tacit.cli.screens.terminal import Screen, console, print_notes
from tacit.cli.scripts import ScriptPlan, script_plan
from tacit.cli.settings import Settings, check_device
from tacit.errors import Interrupted, RunError
from tacit.record.run import Run
from tacit.simulation import simulate


@explained
def simulate_command(
    script: options.Script = None,
    arguments: options.ScriptArguments = None,
    workload: options.Workload = None,
    strategy: options.Strategy = None,
    steps: options.Steps = None,
    until_loss: options.UntilLoss = None,
    seed: options.Seed = None,
    config: options.Config = None,
    simulated_plan: options.SimulatedPlan = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    cluster: options.ClusterFile = None,
    workers: options.Workers = None,
    compute: options.Compute = None,
    speed: options.Speed = None,
    latency: options.Latency = None,
    bandwidth: options.Bandwidth = None,
    hosts: options.Hosts = None,
    collectives: options.Collectives = None,
    faults: options.Faults = None,
    out: options.Out = None,
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    evaluate_every: options.EvaluateEvery = None,
    evaluate_every_s: options.EvaluateEverySeconds = None,
    engine: options.Engine = None,
    device: options.Device = None,
    threads: options.Threads = None,
    timing_only: options.TimingOnly = None,
    debug: options.Debug = False,
) -> None:
    """Run one strategy, or a training script, on a simulated cluster.

    Writes the run (history, trace, model), run.toml (which reproduces the
    run bit for bit) and report.html into the output folder.

    [bold]Examples[/]

    \b
      tacit simulate -s 'LocalSGD(period=Every(8))' --steps 5000 --until-loss 0.2
      tacit simulate -s AllReduce --compute 'Pareto(minimum_s=0.01, shape=2.5)' --workers 64
      tacit simulate -s LocalSGD --fault 'Slow(rank=5, factor=4.0, at_s=1.0)' --out slow
      tacit simulate --config slow/run.toml --seed 1
      tacit simulate train.py --workers 64 --cluster slow/run.toml -- --lr 0.1

    The last example runs train.py, the same file that torchrun starts on a
    real cluster, on 64 simulated workers. Arguments after -- go to the
    script. --strategy replaces the strategy that the script gives to
    tacit.attach. --compute measured uses the measured times of its steps
    instead of drawn ones.
    """
    given = dict(locals())
    plan = script_plan(given, single=True) or settings_from(given, single=True)
    if isinstance(plan, Settings):
        check_device(plan)
    if json_file is not None:
        folders.writable(json_file)
    folder = folders.claim(out, command="simulate", force=force)
    print_notes(option_tables.alias_notes(given), console(quiet))
    with folders.removed_if_unused(folder):
        run, error = _run(plan, console(quiet))
    keep(run, folder, console(quiet), json_file)
    if error is not None:
        complain(f"{describe(error) or 'interrupted'} — the unfinished run is saved in {folder}")
        raise typer.Exit(INTERRUPTED if isinstance(error, Interrupted) else FAILED)


def _run(plan: Settings | ScriptPlan, screen: Console) -> tuple[Run, BaseException | None]:
    """Return the run, and the error that ended it early."""
    torch.set_num_threads(plan.threads)
    with Screen(screen) as watcher:
        try:
            run = plan.run(watcher, screen.quiet) if isinstance(plan, ScriptPlan) else _simulate(plan, watcher)
        except (RunError, Interrupted) as error:
            if error.run is None:
                raise
            return error.run, error
    return run, None


def _simulate(settings: Settings, watcher: Screen) -> Run:
    [strategy], [seed] = settings.strategies, settings.seeds
    watcher.begin(f"{strategy} · seed {seed}")
    return simulate(
        settings.workload,
        strategy,
        seed=seed,
        progress=watcher.step,
        timing_only=settings.timing_only,
        until_loss=settings.until_loss,
        optimizer_state=settings.optimizer_state,
        moments_every=settings.moments_every,
        **settings.training(),
    )
