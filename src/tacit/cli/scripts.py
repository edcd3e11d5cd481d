"""``tacit simulate train.py``: what to run when it is a script of the user's own."""

from __future__ import annotations

import io
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.cli.options import table_from
from tacit.cli.settings import Table, check_keys, cluster_of, read_cluster, read_toml
from tacit.cli.terminal import Screen
from tacit.errors import require
from tacit.run import Run
from tacit.simulation import Cluster
from tacit.simulation.scripts import simulate_script

MEASURED: Final = "measured"
_KEYS: Final = ("script", "arguments", "seed", "threads", "cluster")
_ITS_OWN: Final = {  # what a script decides for itself, as its user would say it
    "workload": "--workload", "strategy": "--strategy", "steps": "--steps", "optimizer": "--optimizer", "lr": "--lr",
    "momentum": "--momentum", "weight_decay": "--weight-decay", "schedule": "--schedule", "evaluate_every": "--evaluate-every",
    "engine": "--engine", "device": "--device", "timing_only": "--timing-only",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """A script and the cluster it is to run on."""

    script: Path
    arguments: tuple[str, ...]
    cluster: Cluster
    is_measured: bool
    seed: int
    threads: int

    def run(self, watcher: Screen, quiet: bool) -> Run:
        watcher.begin_run(f"{self.script.name} · seed {self.seed}")
        with redirect_stdout(io.StringIO()) if quiet else nullcontext():
            return simulate_script(
                self.script, self.arguments, cluster=self.cluster, seed=self.seed, measured=self.is_measured,
                progress=watcher.step,
            )  # fmt: skip


def script_plan(given: dict[str, Any]) -> ScriptPlan | None:
    """Return the script that a command's options or its ``config`` file name; None where they name none."""
    beneath: Table = {} if given["config"] is None else read_toml(given["config"], "--config")
    script = given["script"] or beneath.get("script")
    if script is None:
        return None
    for name, option in _ITS_OWN.items():
        require(
            given[name] is None,
            f"{option} with a script: it makes its own model, optimizer and strategy; leave {option} out, "
            f"or give it to the script after --.",
        )
    if "script" not in beneath:  # the file of another run, for its cluster
        beneath = {key: value for key, value in beneath.items() if key in ("cluster", "seed", "threads")}
    check_keys(beneath, _KEYS, f"{given['config']}")
    above = table_from(given)
    in_file = {} if given["cluster"] is None else read_cluster(given["cluster"])
    cluster = {**beneath.get("cluster", {}), **in_file, **above["cluster"]}
    is_measured = cluster.get("compute") == MEASURED
    if is_measured:
        del cluster["compute"]
    [seed] = above.get("seeds") or [beneath.get("seed", 0)]
    threads = above.get("threads") or beneath.get("threads", 1)
    require(isinstance(threads, int) and threads >= 1, f"threads={threads} must be a whole number, at least 1.")
    arguments = given["arguments"] or beneath.get("arguments", [])
    return ScriptPlan(
        script=Path(script), arguments=tuple(arguments), cluster=cluster_of(cluster), is_measured=is_measured,
        seed=seed, threads=threads,
    )  # fmt: skip
