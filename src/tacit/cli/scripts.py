"""Training scripts in ``tacit simulate train.py`` and ``tacit compare train.py``: options and files to a plan."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.cli.option_tables import planned_table, table_from
from tacit.cli.screens.terminal import Screen
from tacit.cli.settings import parsed_strategy, read_cluster
from tacit.cluster import Cluster
from tacit.cluster.joins import check_script_joins
from tacit.compare.findings import Findings, check_pairs
from tacit.compare.scripts import compare_script
from tacit.compare.tasks import OWN
from tacit.compare.watcher import Watcher
from tacit.errors import require
from tacit.record.files import toml_text
from tacit.record.run import Run
from tacit.record.step_times import moved_to_files
from tacit.registry.tables import Table, check_keys, checked, cluster_of, read_toml
from tacit.simulation.scripts.run import compiled, simulate_script
from tacit.strategies import Strategy

MEASURED: Final = "measured"
_KEYS: Final = ("script", "arguments", "threads", "cluster")
_SIMULATE_KEYS: Final = ("strategy", "seed")
_COMPARE_KEYS: Final = ("strategies", "seeds", "target")
_CHOSEN_BY_THE_SCRIPT: Final = {  # with the names of the options
    "workload": "--workload",
    "steps": "--steps",
    "optimizer": "--optimizer",
    "lr": "--lr",
    "momentum": "--momentum",
    "weight_decay": "--weight-decay",
    "schedule": "--schedule",
    "evaluate_every": "--evaluate-every",
    "evaluate_every_s": "--evaluate-every-s",
    "engine": "--engine",
    "device": "--device",
    "timing_only": "--timing-only",
}


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """A script, its cluster, and the strategies that replace its own (None: keep its own)."""

    script: Path
    arguments: tuple[str, ...]
    strategies: tuple[Strategy[Any] | None, ...]
    cluster: Cluster
    is_measured: bool
    seeds: tuple[int, ...]
    target: float | None
    threads: int

    def run(self, watcher: Screen, quiet: bool) -> Run:
        """Return the run of the one strategy and seed, for ``tacit simulate``."""
        [strategy], [seed] = self.strategies, self.seeds
        given = "" if strategy is None else f" · {strategy}"
        watcher.begin(f"{self.script.name}{given} · seed {seed}")
        with redirect_stdout(io.StringIO()) if quiet else nullcontext():
            return simulate_script(
                self.script,
                self.arguments,
                cluster=self.cluster,
                strategy=strategy,
                seed=seed,
                measured=self.is_measured,
                progress=watcher.step,
            )

    def compare(self, watcher: Watcher, earlier: tuple[Run, ...], jobs: int | None, executor: str) -> Findings:
        """Run every strategy with every seed."""
        return compare_script(
            self.script,
            self.arguments,
            self.strategies,
            cluster=self.cluster,
            seeds=self.seeds,
            measured=self.is_measured,
            target=self.target,
            threads=self.threads,
            jobs=jobs,
            executor=executor,
            reproduce=self.toml(),
            watcher=watcher,
            earlier=earlier,
        )

    def check(self) -> None:
        """Raise errors that would end every run at its start; called before a folder is created."""
        compiled(self.script)
        check_pairs([OWN if strategy is None else str(strategy) for strategy in self.strategies], self.seeds)
        check_script_joins(self.cluster)

    def toml(self, folder: Path | None = None) -> str:
        """Return the TOML file that ``tacit compare --config`` reads; long lists are written into ``folder``."""
        table = self.table() if folder is None else moved_to_files(self.table(), folder)
        return toml_text(table, comment="tacit compare --config compare.toml repeats this comparison.")

    def table(self) -> Table:
        """Return the comparison as the table of the TOML file."""
        cluster = self.cluster.table() | ({"compute": MEASURED} if self.is_measured else {})
        return {
            "script": str(self.script.resolve()),
            "arguments": list(self.arguments),
            "strategies": [OWN if strategy is None else str(strategy) for strategy in self.strategies],
            "seeds": list(self.seeds),
            "target": self.target,
            "threads": self.threads,
            "cluster": cluster,
        }


def script_plan(given: dict[str, Any], *, single: bool) -> ScriptPlan | None:
    """Return the plan for the script in a command's options or its ``config`` file; None where there is no script."""
    beneath: Table = {} if given["config"] is None else read_toml(given["config"], "--config")
    script = given["script"] or beneath.get("script")
    if script is None:
        return None
    refuse_options(given)
    own = _SIMULATE_KEYS if single else _COMPARE_KEYS
    if "script" not in beneath:  # the file of a run on a workload, used for its cluster
        shared = ("cluster", "threads", "seed") if single else ("cluster", "threads", "seeds", "strategies")
        beneath = {key: value for key, value in beneath.items() if key in shared}
    check_keys(beneath, (*_KEYS, *own), f"{given['config']}")
    above = table_from(given)
    planned = planned_table(given)
    in_file = {} if given["cluster"] is None else read_cluster(given["cluster"])
    cluster = {**beneath.get("cluster", {}), **planned.get("cluster", {}), **in_file, **above["cluster"]}
    if planned:
        above = {"strategies": planned["strategies"], **above}
    is_measured = cluster.get("compute") == MEASURED
    if is_measured:
        del cluster["compute"]
    threads = checked("threads", above.get("threads", beneath.get("threads", 1)), int)
    require(threads >= 1, f"threads={threads} must be at least 1.")
    target = above.get("target", beneath.get("target"))
    strategies, seeds = _pairs({**beneath, **above}, Path(script), single=single)
    return ScriptPlan(
        script=Path(script),
        arguments=tuple(given["arguments"] or beneath.get("arguments", [])),
        strategies=strategies,
        cluster=cluster_of(cluster),
        is_measured=is_measured,
        seeds=seeds,
        threads=threads,
        target=None if target is None else checked("target", target, float),
    )


def refuse_options(given: dict[str, Any]) -> None:
    """Raise if an option is given that a script chooses itself."""
    for name, option in _CHOSEN_BY_THE_SCRIPT.items():
        require(
            given.get(name) is None,
            f"{option} cannot be used with a script, which creates its own model and optimizer; leave out {option}, "
            f"or pass it to the script after --.",
        )
    require(
        given.get("until_loss") is None,
        "--until-loss cannot be used with a script: the losses of its steps are those of single mini-batches, and only "
        "the script can end its own loop; leave out --until-loss, and let the script end it.",
    )
    require(
        not given.get("tune"),
        "--tune cannot be used with a script, which chooses its own learning rate; leave out --tune, "
        "and run one comparison per learning rate, with the script's own option after --.",
    )


def _pairs(table: Table, script: Path, *, single: bool) -> tuple[tuple[Strategy[Any] | None, ...], tuple[int, ...]]:
    """Return strategies and seeds; ``single``: one of each."""
    texts = table.get("strategies", [table.get("strategy", OWN)] if single else [OWN, "AllReduce()"])
    seeds = table.get("seeds", [table.get("seed", 0)])
    if isinstance(seeds, int):
        seeds = list(range(seeds))
    texts, seeds = (
        checked("strategies", texts, list),
        [checked("seeds", one, int) for one in checked("seeds", seeds, list)],
    )
    return tuple(None if text == OWN else _strategy(text, script) for text in texts), tuple(seeds)


def _strategy(text: Any, script: Path) -> Strategy[Any]:
    """Return the strategy for ``text``; the error for a class that the script defines shows how to name it."""
    try:
        return parsed_strategy(text)
    except ValueError as error:
        name = str(text).partition("(")[0].strip()
        source = script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""
        if not re.search(rf"^class {re.escape(name)}\b", source, re.MULTILINE):
            raise
        raise ValueError(
            f"strategy={name!r} must be a name that tacit knows, and {script.name} defines it; write -s script for the "
            f"strategy that the script gives to tacit.attach, or move the class to a module and write -s module:{name}."
        ) from error
