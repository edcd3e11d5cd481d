"""``tacit compare``: several strategies on one workload and cluster, from options to report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import typer
from rich.console import Console

from tacit.cli import option_tables, options
from tacit.cli import run_folders as folders
from tacit.cli.exit_messages import FAILED, INTERRUPTED, complain, explained
from tacit.cli.option_tables import settings_from
from tacit.cli.resumed import Earlier, resumed
from tacit.cli.screens.comparison_screen import ComparisonScreen
from tacit.cli.screens.terminal import console, print_notes
from tacit.cli.scripts import ScriptPlan, script_plan
from tacit.cli.settings import Settings, check_device, import_notes
from tacit.compare.findings import Findings, check_rates, count_runs
from tacit.compare.rates import RateResults
from tacit.compare.runners import LOCAL, check_executor, default_jobs
from tacit.compare.scripts import is_own
from tacit.compare.tasks import OWN, Task
from tacit.compare.tuning import Tuning
from tacit.compare.workloads import compare
from tacit.errors import require
from tacit.record.files import write_text
from tacit.record.run import Run
from tacit.report import print_table, write_report


@explained
def compare_command(
    script: options.Script = None,
    arguments: options.ScriptArguments = None,
    workload: options.Workload = None,
    strategies: options.Strategies = None,
    steps: options.Steps = None,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    target: options.Target = None,
    config: options.Config = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRates = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    tune: options.Tune = None,
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
    resume: options.Resume = None,
    force: options.Force = False,
    all_rates: options.AllRates = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    evaluate_every: options.EvaluateEvery = None,
    evaluate_every_s: options.EvaluateEverySeconds = None,
    engine: options.Engine = None,
    device: options.Device = None,
    threads: options.Threads = None,
    jobs: options.Jobs = None,
    executor: options.Executor = LOCAL,
    debug: options.Debug = False,
) -> None:
    """Compare strategies on one workload or training script and one simulated cluster, paired by seed.

    Writes report.html (open it in a browser), compare.json, compare.toml
    (which reproduces the comparison) and every run into the output folder.

    [bold]Examples[/]

    \b
      tacit compare
      tacit compare -s AllReduce -s 'LocalSGD(period=Every(16))' --seeds 3 --lr 0.1,0.3 --jobs 4
      tacit compare --workers 32 --bandwidth 100Mbit/s --latency 5ms --speed 3=0.33
      tacit compare train.py -s AllReduce -s LocalSGD --workers 8 -- --lr 0.1
      tacit compare --resume runs/compare-20260102-120000 --seeds 5

    With train.py, the same file that torchrun starts on a real cluster runs
    once for each strategy and seed, and tacit.attach uses that strategy
    instead of the script's own; -s script keeps the script's own. Arguments
    after -- go to the script. The loss in the table is the one that the
    script reports with session.observe or session.log.

    Runs are made in parallel, one per core. Their results do not depend on
    --jobs. Ctrl-C saves the finished runs; --resume continues.
    """
    given = dict(locals())
    check_executor(executor, jobs)
    if resume is not None:
        require(
            out is None and config is None and not force,
            "--resume already names the folder; leave out --out, --config and --force.",
        )
        if (resume / "compare.toml").exists():
            print_notes(import_notes(resume / "compare.toml"), console(quiet))
        plan, earlier = resumed(resume, given)
    else:
        plan, earlier = script_plan(given, single=False) or settings_from(given, single=False), Earlier()
    if isinstance(plan, ScriptPlan):
        plan.check()
    else:
        check_device(plan)
        check_rates(plan.rates, plan.tune)
    if json_file is not None:
        folders.writable(json_file)
    folder = resume if resume is not None else folders.claim(out, command="compare", force=force)
    print_notes(option_tables.alias_notes(given), console(quiet))
    findings = _run(plan, folder, earlier, console(quiet), _place(plan, jobs, executor), all_rates)
    if json_file is not None:
        write_text(json_file, _json(findings))
    _end(findings, folder)


class _Place(NamedTuple):
    """Where the runs are made, how many at once (None: any number), and a note if it is one for a reason."""

    jobs: int | None
    executor: str
    note: str = ""


def _place(plan: Settings | ScriptPlan, jobs: int | None, executor: str) -> _Place:
    """Return where the runs are made; by default as many at once as there are cores."""
    if jobs is not None or executor != LOCAL:
        return _Place(jobs, executor)
    if isinstance(plan, ScriptPlan) and plan.is_measured:
        return _Place(1, executor, "runs are made one at a time, because others would lengthen the measured steps.")
    device = "cpu" if isinstance(plan, ScriptPlan) else plan.device
    why = f"runs are made one at a time, because they would share the memory of {device}; --jobs 2 makes two at once."
    return _Place(default_jobs(plan.threads, device), executor, "" if device.startswith("cpu") else why)


class _Keeper(ComparisonScreen):
    """Saves every reported run as soon as it ends."""

    def __init__(self, console: Console, total: int, folder: Path, has_rates: bool) -> None:
        super().__init__(console, total)
        self.folder, self.has_rates = folder, has_rates
        self.kept: set[str] = set()

    def end(self, task: Task, run: Run) -> None:
        if not task.is_tuning:
            self.keep(run)
        super().end(task, run)

    def keep(self, run: Run) -> None:
        """Save ``run`` unless it is saved already; called again at the end, as Ctrl-C can interrupt a save."""
        lr = run.config["lr"] if self.has_rates else None
        name = folders.run_name(OWN if is_own(run) else run.strategy, run.seed, lr)
        if name not in self.kept:
            run.save(self.folder / "runs" / name, overwrite=True)
            self.kept.add(name)


def _run(
    plan: Settings | ScriptPlan, folder: Path, earlier: Earlier, screen: Console, place: _Place, shows_all_rates: bool
) -> Findings:
    """Run the comparison and write its results."""
    write_text(folder / "compare.toml", plan.toml(folder))
    torch.set_num_threads(plan.threads)
    is_tuned, rates = (plan.tune, plan.rates) if isinstance(plan, Settings) else (False, ())
    total = count_runs(len(plan.strategies), len(plan.seeds), is_tuned, max(1, len(rates)))
    print_notes([place.note] if place.note and total > 1 else [], screen)
    with _Keeper(screen, total, folder, has_rates=len(rates) > 1) as keeper:
        findings = _compare(plan, earlier, keeper, place)
    every = findings.all_rates or findings.comparison
    for entry in every.entries if every is not None else ():
        for run in entry.runs:
            keeper.keep(run)
    write_text(folder / "compare.json", _json(findings))
    searched: Mapping[str, Tuning | RateResults] = {**findings.tunings, **findings.rates}
    for label, results in searched.items():
        screen.print(f"{label}: {results.note}\n    {results}", highlight=False, markup=False, soft_wrap=True)
    shown = every if shows_all_rates else findings.comparison
    if shown is not None:
        write_report(shown, folder / "report.html")
        screen.print()
        print_table(shown, screen)
        print_notes(findings.notes, screen)
        screen.print(
            f"\nReport: {folder / 'report.html'} · runs, numbers, settings: {folder}", highlight=False, soft_wrap=True
        )
    return findings


def _compare(plan: Settings | ScriptPlan, earlier: Earlier, keeper: _Keeper, place: _Place) -> Findings:
    if isinstance(plan, ScriptPlan):
        return plan.compare(keeper, earlier.runs, place.jobs, place.executor)
    return compare(
        plan.workload,
        plan.strategies,
        seeds=plan.seeds,
        tune=plan.tune,
        target=plan.target,
        threads=plan.threads,
        reproduce=plan.toml(),
        watcher=keeper,
        earlier=earlier.runs,
        earlier_tunings=earlier.tunings,
        **{**plan.training(), "lr": plan.rates},
        jobs=place.jobs,
        executor=place.executor,
    )


def _end(findings: Findings, folder: Path) -> None:
    if findings.interrupted:
        kept = "finished runs are saved." if findings.comparison else "no run was finished."
        complain(f"interrupted; {kept} tacit compare --resume {folder} continues.")
        raise typer.Exit(INTERRUPTED)
    assert findings.comparison is not None
    every = findings.all_rates or findings.comparison
    runs = [(entry.label, run) for entry in every.entries for run in entry.runs]
    failed = [(label, run) for label, run in runs if run.status != "finished"]
    for label, run in failed:
        complain(f"{label}, seed {run.seed}: {run.status}")
    if failed:
        raise typer.Exit(FAILED)


def _json(findings: Findings) -> str:
    return json.dumps(findings.as_json(), indent=1) + "\n"
