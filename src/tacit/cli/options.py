"""The options that commands share, in the panels their help shows, and the settings they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tacit.cli import units
from tacit.cli.settings import Settings, Table, read_cluster, read_file, settle
from tacit.registry import find_alias, parse

_WHAT: Final = "What is trained"
_HOW: Final = "How it learns"
_CLUSTER: Final = "The cluster (simulated)"
_OUTPUT: Final = "Where results go"
_RUNNING: Final = "How it is computed"
_PROCESSES: Final = "The processes"
_SCRIPT: Final = "Your own script"

Workload = Annotated[
    str | None,
    typer.Option(
        metavar="WORKLOAD",
        help="Model, loss, data and split; `tacit list workloads` shows them.",
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
        help="How workers talk; repeat it for each strategy to compare. `tacit list strategies` shows them. "
        "With a script, the name script stands for the script's own.",
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
        help="How workers talk; `tacit list strategies` shows them.",
        show_default="AllReduce; with a script: its own",
        rich_help_panel=_WHAT,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Optimizer steps per worker (server strategies: updates of the server's model).",
        show_default="500",
        rich_help_panel=_WHAT,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="N|A,B,…",
        help="How many seeds (3 is 0, 1, 2), or which ones (4,7,9). Equal seeds give equal batches and delays.",
        show_default="1",
        rich_help_panel=_WHAT,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="The run's one seed; equal seeds give equal runs.", show_default="0", rich_help_panel=_WHAT
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        metavar="LOSS",
        help="Loss that time, bytes and rounds are measured to.",
        show_default="one that all reach",
        rich_help_panel=_WHAT,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="sgd, adam, adamw, rmsprop, adagrad, …", show_default="sgd", rich_help_panel=_HOW
    ),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help="Learning rate.", show_default="0.1", rich_help_panel=_HOW)
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
        help="Learning-rate schedule such as 'StepDecay()'; `tacit list schedules` shows them.",
        show_default="none",
        rich_help_panel=_HOW,
    ),
]
Tune = Annotated[
    bool | None,
    typer.Option(
        "--tune",
        help="Search every strategy's learning rate around --lr first: 8 runs each, on a seed that is not reported.",
        show_default="off",
        rich_help_panel=_HOW,
    ),
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Number of workers.", show_default="16", rich_help_panel=_CLUSTER)
]
Compute = Annotated[
    str | None,
    typer.Option(
        metavar="DELAY",
        help="Distribution of one step's compute time; `tacit list delays` shows them.",
        show_default="Exponential(mean_s=0.02)",
        rich_help_panel=_CLUSTER,
    ),
]
Speed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK=FACTOR",
        help="Speed of one worker; 3=0.33 runs worker 3 at a third of the speed. Repeatable.",
        show_default="1 for all",
        rich_help_panel=_CLUSTER,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="One-way latency: 0.1ms, 20us, seconds.", show_default="0.1ms", rich_help_panel=_CLUSTER
    ),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Of each worker's network card, each way: 1Gbit/s, 100MB/s, bytes per second.",
        show_default="1Gbit/s",
        rich_help_panel=_CLUSTER,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="Something that goes wrong, such as 'Crash(rank=3, at_s=2.0)'; `tacit list faults`. Repeatable.",
        show_default="none",
        rich_help_panel=_CLUSTER,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="Read settings from a file in the same notation; options given here override it.",
        rich_help_panel=_WHAT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for report, tables and runs; refused if it holds something.",
        show_default="runs/… with date and time",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Go on with the comparison in FOLDER: finished runs are kept, missing ones are run. May add --seeds and --strategy.",
        rich_help_panel=_OUTPUT,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace results that --out holds.", rich_help_panel=_OUTPUT)]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the numbers to this file.", rich_help_panel=_OUTPUT),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=_OUTPUT)]
EvaluateEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Steps between evaluations of the common model.",
        show_default="chosen by length",
        rich_help_panel=_RUNNING,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How gradients are evaluated: vmap (all workers at once), loop, or auto.",
        show_default="auto",
        rich_help_panel=_RUNNING,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Where tensors live: cpu, cuda, cuda:1, …", show_default="cpu", rich_help_panel=_RUNNING
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="CPU threads of torch. One is fastest for small models and gives equal digests on every machine.",
        show_default="1",
        rich_help_panel=_RUNNING,
    ),
]
TimingOnly = Annotated[
    bool | None,
    typer.Option(
        "--timing-only",
        help="Compute no gradients: only time and bytes are real.",
        show_default="off",
        rich_help_panel=_RUNNING,
    ),
]
Script = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCRIPT.py",
        help="A training script with tacit.attach in it, to run on every worker instead of a workload.",
        show_default=False,
        rich_help_panel=_SCRIPT,
    ),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGUMENTS",
        help="What the script is given: everything after --.",
        show_default=False,
        rich_help_panel=_SCRIPT,
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE.toml|FOLDER",
        help="Read the cluster from a file, such as the run.toml of another run, or take it from the folder of a run on real "
        "processes: its measured step times. The options below override it.",
        rich_help_panel=_CLUSTER,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_RUNNING)]

Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Number of workers, each a process; on several machines, of all of them together.",
        show_default="2",
        rich_help_panel=_PROCESSES,
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Steps between checkpoints. A lost worker leaves one in any case.",
        show_default="none",
        rich_help_panel=_PROCESSES,
    ),
]
ResumeRun = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="FOLDER",
        help="Go on with the run in FOLDER from its last checkpoint, with other --workers too; a larger --steps extends a finished run.",
        rich_help_panel=_PROCESSES,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long a round waits for a worker: 90s, 10min.",
        show_default="from what was measured, 5min at least",
        rich_help_panel=_PROCESSES,
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network interface between machines, such as eth0.",
        show_default="the one that leads to the first machine",
        rich_help_panel=_PROCESSES,
    ),
]
Security = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of messages (gossip, servers): token, curve (encrypted) or plain (trusted links).",
        show_default="token on one machine, curve between machines",
        rich_help_panel=_PROCESSES,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Of a server strategy: beside rank 0, apart (a process of its own here), or elsewhere (tacit serve on another machine).",
        show_default="beside",
        rich_help_panel=_PROCESSES,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Machines, for --print-command.", show_default="1", rich_help_panel=_PROCESSES),
]
PrintCommand = Annotated[
    bool,
    typer.Option(
        "--print-command", help="Print the torchrun line for each machine, and run nothing.", rich_help_panel=_PROCESSES
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Also show numbers while it runs: tensorboard (in the output folder), wandb, mlflow.",
        show_default="nowhere",
        rich_help_panel=_OUTPUT,
    ),
]

_SAME_NAME: Final = (
    "workload",
    "steps",
    "optimizer",
    "lr",
    "momentum",
    "weight_decay",
    "schedule",
    "tune",
    "target",
    "evaluate_every",
    "engine",
    "device",
    "threads",
    "timing_only",
)


def settings_from(given: dict[str, Any], *, single: bool) -> Settings:
    """Return the settings that a command's options ask for, over those of its ``config`` file."""
    beneath: Table = {"strategies": ["AllReduce()"]} if single else {}
    if given["config"] is not None:
        beneath |= read_file(given["config"], single=single)
    cluster = {} if given.get("cluster") is None else {"cluster": read_cluster(given["cluster"])}
    return settle(beneath, cluster, table_from(given))


def alias_notes(given: dict[str, Any]) -> list[str]:
    """Return what papers' names among a command's strategies stand for."""
    asked = [*(given.get("strategies") or ()), *filter(None, [given.get("strategy")])]
    found = [(text, find_alias(text.partition("(")[0], "strategies")) for text in asked]
    return [f"{alias.name} stands for {parse(text, 'strategies')} ({alias.source})" for text, alias in found if alias]


def table_from(given: dict[str, Any]) -> Table:
    """Return what a command's options say, in the words of the TOML file."""
    table: Table = {name: given[name] for name in _SAME_NAME if given.get(name) is not None}
    if given.get("strategies"):
        table["strategies"] = given["strategies"]
    if given.get("strategy") is not None:
        table["strategies"] = [given["strategy"]]
    if given.get("seeds") is not None and given.get("seed") is not None:
        raise ValueError("--seeds and --seed exclude each other; --seeds 4,7 names several.")
    if given.get("seeds") is not None:
        table["seeds"] = units.seeds(given["seeds"])
    if given.get("seed") is not None:
        table["seeds"] = [given["seed"]]
    train = {
        name: given[name] for name in ("checkpoint_every", "log", "interface", "security", "server") if given.get(name)
    }
    if given.get("timeout") is not None:
        train["timeout_s"] = units.seconds(given["timeout"])
    return table | {"cluster": _cluster_from(given), "train": train}


def _cluster_from(given: dict[str, Any]) -> Table:
    readers: dict[str, tuple[str, Any]] = {
        "workers": ("workers", None),
        "compute": ("compute", None),
        "latency": ("latency_s", units.seconds),
        "bandwidth": ("bandwidth_bytes_per_s", units.bytes_per_second),
        "speed": ("speed", lambda texts: dict(map(units.assignment, texts))),
        "faults": ("faults", list),
    }
    return {
        key: given[option] if read is None else read(given[option])
        for option, (key, read) in readers.items()
        if given.get(option) not in (None, [])
    }
