"""Options that several commands share, by the panels of their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

_WHAT: Final = "Training"
_HOW: Final = "Optimizer"
_CLUSTER: Final = "Simulated cluster"
_OUTPUT: Final = "Output"
_RUNNING: Final = "Computation"
_SCRIPT: Final = "Training script"

Workload = Annotated[
    str | None,
    typer.Option(
        metavar="WORKLOAD",
        help="Model, loss, data and its split over the workers; see `tacit list workloads`.",
        show_default='digits(model="mlp")',
        rich_help_panel=_WHAT,
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        "-s",
        metavar="STRATEGY",
        help="Strategy to compare: a name from `tacit list strategies`, or module:Class for a class of your own. "
        "With a script, the word script stands for the script's own strategy. Repeatable.",
        show_default="AllReduce and three LocalSGD; with a script: its own and AllReduce",
        rich_help_panel=_WHAT,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        "-s",
        metavar="STRATEGY",
        help="Communication strategy: a name from `tacit list strategies`, or module:Class for a class of your own.",
        show_default="AllReduce; with a script: its own",
        rich_help_panel=_WHAT,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Optimizer steps per worker; with a server strategy, updates of the server's model.",
        show_default="500",
        rich_help_panel=_WHAT,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="N|A,B,…",
        help="Number of seeds (3 means 0, 1, 2), or a list of seeds (4,7,9). "
        "Equal seeds give equal batches and delays.",
        show_default="1",
        rich_help_panel=_WHAT,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Seed of the run. Equal seeds give equal runs.", show_default="0", rich_help_panel=_WHAT
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        metavar="LOSS",
        help="Loss at which time, bytes and rounds are compared.",
        show_default="a loss that all strategies reach",
        rich_help_panel=_WHAT,
    ),
]
SimulatedPlan = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE.toml",
        help="Plan of `tacit plan`: its strategy, its settings, and the cluster of its profile. Other options override "
        "it.",
        rich_help_panel=_WHAT,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Optimizer of torch: sgd, adam, adamw, rmsprop, adagrad, …",
        show_default="sgd",
        rich_help_panel=_HOW,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr", metavar="RATE", help="Learning rate of the optimizer.", show_default="0.1", rich_help_panel=_HOW
    ),
]
LearningRates = Annotated[
    str | None,
    typer.Option(
        "--lr",
        metavar="RATE|A,B,…",
        help="Learning rate of the optimizer, or several (0.1,0.3): every strategy runs with each of them, and the "
        "table shows the best one.",
        show_default="0.1",
        rich_help_panel=_HOW,
    ),
]
AllRates = Annotated[
    bool,
    typer.Option(
        "--all-rates",
        help="Show a row for each learning rate of --lr, not only for the best one of each strategy.",
        rich_help_panel=_OUTPUT,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Runs at once, each in a process of its own. Results do not depend on it.",
        show_default="all cores; 1 on a GPU",
        rich_help_panel=_RUNNING,
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where runs are made: local (this machine), ray (the cluster of RAY_ADDRESS, or a new one on this "
        "machine), or ray://HOST:PORT.",
        rich_help_panel=_RUNNING,
    ),
]
Momentum = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Momentum of the workers' SGD.", show_default="0", rich_help_panel=_HOW),
]
WeightDecay = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Weight decay of the optimizer.", show_default="0", rich_help_panel=_HOW),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEDULE",
        help="Learning-rate schedule, such as 'StepDecay()'; see `tacit list schedules`.",
        show_default="none",
        rich_help_panel=_HOW,
    ),
]
Tune = Annotated[
    bool | None,
    typer.Option(
        "--tune",
        help="Search the best learning rate of each strategy around --lr first: "
        "8 runs each, with a seed that is not reported.",
        show_default="off",
        rich_help_panel=_HOW,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of simulated workers.", show_default="16", rich_help_panel=_CLUSTER),
]
Compute = Annotated[
    str | None,
    typer.Option(
        metavar="DELAY",
        help="Distribution of the compute time of one step; see `tacit list delays`. With a script, the word measured "
        "takes the measured times of its steps.",
        show_default="Exponential(mean_s=0.02)",
        rich_help_panel=_CLUSTER,
    ),
]
Speed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK=FACTOR",
        help="Relative speed of one worker: 3=0.33 runs worker 3 at a third of the speed. Repeatable.",
        show_default="1 for all workers",
        rich_help_panel=_CLUSTER,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="One-way latency between two workers: 0.1ms, 20us, or seconds.",
        show_default="0.1ms",
        rich_help_panel=_CLUSTER,
    ),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Bandwidth of each host's NIC, per direction: 1Gbit/s, 100MB/s, or bytes per second.",
        show_default="1Gbit/s",
        rich_help_panel=_CLUSTER,
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="N|A,B,…",
        help="Number of hosts that the workers are divided over (2), or each worker's host (0,0,1,1). Workers of one "
        "host share its NIC and do not use it among themselves.",
        show_default="one host per worker",
        rich_help_panel=_CLUSTER,
    ),
]
Collectives = Annotated[
    str | None,
    typer.Option(
        metavar="ring|gloo|TIMES",
        help="Times of collectives: of a ring, as gloo runs them, or 'Measured({1000: 0.0004, 1000000: 0.011})' with "
        "the seconds of an all-reduce by bytes.",
        show_default="ring",
        rich_help_panel=_CLUSTER,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="Fault to simulate, such as 'Crash(rank=3, at_s=2.0)'; see `tacit list faults`. Repeatable.",
        show_default="none",
        rich_help_panel=_CLUSTER,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="TOML file with settings in the same notation. Options of the command line override it.",
        rich_help_panel=_WHAT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for the report, tables and runs; must be empty or absent.",
        show_default="runs/COMMAND-DATE-TIME",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Continue the comparison in FOLDER: keep finished runs and run the missing ones. "
        "--seeds and --strategy add runs.",
        rich_help_panel=_OUTPUT,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace earlier results of tacit in --out.", rich_help_panel=_OUTPUT)
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="JSON file to which the numbers are written as well.", rich_help_panel=_OUTPUT
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=_OUTPUT)]
EvaluateEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Steps between evaluations of the reported model.",
        show_default="from the number of steps",
        rich_help_panel=_RUNNING,
    ),
]
EvaluateEverySeconds = Annotated[
    float | None,
    typer.Option(
        "--evaluate-every-s",
        metavar="SECONDS",
        help="Seconds of virtual time between evaluations of the model that the strategy would report at that time.",
        show_default="evaluations at steps",
        rich_help_panel=_RUNNING,
    ),
]
UntilLoss = Annotated[
    float | None,
    typer.Option(
        metavar="LOSS",
        help="End the run at the first evaluation whose loss is at most this.",
        show_default="run all steps",
        rich_help_panel=_WHAT,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Evaluation of gradients: vmap (all workers in one call), captured (the same as CUDA graphs), compiled "
        "(with torch.compile, for long runs), loop (one worker after the other), or auto.",
        show_default="auto",
        rich_help_panel=_RUNNING,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Device of the tensors: cpu, cuda, cuda:1, …", show_default="cpu", rich_help_panel=_RUNNING
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="CPU threads of torch. One is fastest for small models and gives the same digests on every machine.",
        show_default="1",
        rich_help_panel=_RUNNING,
    ),
]
TimingOnly = Annotated[
    bool | None,
    typer.Option(
        "--timing-only",
        help="Simulate time and bytes only; compute no gradients.",
        show_default="off",
        rich_help_panel=_RUNNING,
    ),
]
Script = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCRIPT.py",
        help="Training script that calls tacit.attach; runs on every worker in place of a workload.",
        show_default=False,
        rich_help_panel=_SCRIPT,
    ),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGUMENTS",
        help="Arguments of the script, after --.",
        show_default=False,
        rich_help_panel=_SCRIPT,
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE.toml|FOLDER",
        help="Cluster from a TOML file, such as run.toml of another run, or from the folder of a run on real "
        "processes, with its measured step times. The options below override it.",
        rich_help_panel=_CLUSTER,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_RUNNING)]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Logger for the numbers of the run: tensorboard (in the output folder), wandb or mlflow.",
        show_default="none",
        rich_help_panel=_OUTPUT,
    ),
]
