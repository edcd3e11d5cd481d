"""``tacit simulate``: one run, saved with what reproduces it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from tacit.cli import folders, options
from tacit.cli.failures import FAILED, INTERRUPTED, complain, describe, explained
from tacit.cli.options import settings_from
from tacit.cli.settings import Settings
from tacit.cli.terminal import Screen, console
from tacit.errors import Interrupted, RunError
from tacit.report import Comparison, Entry, write_report
from tacit.report import units as spelled
from tacit.run import Run
from tacit.simulation import simulate


@explained
def simulate_command(
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
    workers: options.Workers = None,
    compute: options.Compute = None,
    speed: options.Speed = None,
    latency: options.Latency = None,
    bandwidth: options.Bandwidth = None,
    faults: options.Faults = None,
    out: options.Out = None,
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    evaluate_every: options.EvaluateEvery = None,
    engine: options.Engine = None,
    device: options.Device = None,
    threads: options.Threads = None,
    timing_only: options.TimingOnly = None,
    debug: options.Debug = False,
) -> None:
    """Run one strategy on a simulated cluster.

    Writes the run (history, trace, model), run.toml (makes it again, bit
    for bit) and report.html into the output folder.

    [bold]Examples[/]

    \b
      tacit simulate -s 'LocalSGD(period=Every(8))' --steps 1000
      tacit simulate -s AllReduce --compute 'Pareto(minimum_s=0.01, shape=2.5)' --workers 64
      tacit simulate -s LocalSGD --fault 'Slow(rank=5, factor=4.0, at_s=1.0)' --out slow
      tacit simulate --config slow/run.toml --seed 1
    """
    settings = settings_from(dict(locals()), single=True)
    if json_file is not None:
        folders.writable(json_file)
    folder = folders.claim(out, command="simulate", force=force)
    run, error = _run(settings, console(quiet))
    _keep(run, settings, folder, console(quiet))
    if json_file is not None:
        folders.write(json_file, json.dumps({**_described(run), "summary": run.summary()}, indent=1) + "\n")
    if error is not None:
        complain(f"{describe(error) or 'interrupted'} — what there is of the run is in {folder}")
        raise typer.Exit(INTERRUPTED if isinstance(error, Interrupted) else FAILED)


def _run(settings: Settings, screen: Console) -> tuple[Run, BaseException | None]:
    """Return the run, and what ended it before its time."""
    [strategy], [seed] = settings.strategies, settings.seeds
    torch.set_num_threads(settings.threads)
    with Screen(screen, total=1) as watcher:
        watcher.begin(str(strategy), seed, settings.lr, tuning=False)
        try:
            run = simulate(settings.workload, strategy, seed=seed, progress=watcher.step, timing_only=settings.timing_only,
                           **settings.training())  # fmt: skip
        except (RunError, Interrupted) as error:
            if error.run is None:
                raise
            return error.run, error
    return run, None


def _keep(run: Run, settings: Settings, folder: Path, screen: Console) -> None:
    run.save(folder, overwrite=True)
    comparison = Comparison([Entry(run.strategy, [run])], run.workload, str(settings.cluster), reproduce=run.toml())
    write_report(comparison, folder / "report.html")
    screen.print(f"{run.strategy} on {run.workload}, seed {run.seed}", style="bold", highlight=False, markup=False)
    for name, value in _readable(run).items():
        screen.print(f"  {name:<12}{value}", highlight=False, markup=False, soft_wrap=True)
    screen.print(f"Report: {folder / 'report.html'} · run again: tacit simulate --config {folder / 'run.toml'}",
                 highlight=False, soft_wrap=True)  # fmt: skip


def _described(run: Run) -> dict[str, Any]:
    return {
        "workload": run.workload, "strategy": run.strategy, "workers": run.workers, "steps": run.steps,
        "seed": run.seed, "digest": run.digest, "config": dict(run.config), "record": dict(run.record),
    }  # fmt: skip


def _readable(run: Run) -> dict[str, str]:
    """Return the summary as people read it."""
    summary = run.summary()
    shown = {
        "status": run.status,
        "time": f"{spelled.seconds(summary['time_s'])} (virtual)",
        "steps": f"{summary['steps']:,}",
        "rounds": f"{summary['rounds']:,}",
        "sent": spelled.size(summary["bytes_sent"]),
        "loss": "not measured" if summary["loss"] is None else f"{summary['loss']:.6g}",
        "computing": f"{summary['computing']:.0%} of the workers' time",
        "idle": f"{summary['idle']:.0%}",
        "digest": run.digest[:16],
    }
    if summary["metric"] is not None:
        shown[run.metric_name or "metric"] = f"{summary['metric']:.4g}"
    return shown
