"""Comparison of several strategies on a training script and one cluster, paired by seed: ``tacit compare train.py``.

The script runs unmodified, once for each strategy and seed. ``attach`` puts the strategy under comparison in place of
the script's own; None among the strategies keeps the script's own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Final

import torch

from tacit.cluster import Cluster
from tacit.cluster.joins import check_script_joins
from tacit.compare.workloads import Findings, Watcher, check_pairs
from tacit.core.specs import with_python_numbers
from tacit.errors import Interrupted, RunError
from tacit.record.run import Run
from tacit.report import Comparison, Entry
from tacit.simulation.scripts.run import compiled, script_configuration, simulate_compiled
from tacit.simulation.scripts.world import Script
from tacit.strategies import AllReduce, Strategy

OWN: Final = "script"
"""The name of the script's own strategy, on the command line and in compare.toml."""

_OWN_NOTE: Final = "the script's own strategy"


@with_python_numbers
def compare_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    strategies: Sequence[Strategy[Any] | None] = (None, AllReduce()),
    *,
    cluster: Cluster | None = None,
    seeds: Sequence[int] = (0,),
    measured: bool = False,
    target: float | None = None,
    reproduce: str = "",
    watcher: Watcher | None = None,
    earlier: Sequence[Run] = (),
) -> Findings:
    """Run the script ``path`` with every strategy and every seed and return the results.

    strategies: None stands for the script's own strategy. It runs first, so that its name is known; a strategy equal to
    it is not run again. earlier: finished runs; those that were made with the same settings are not made again.

    The other arguments are those of ``simulate_script`` and ``compare``. What the script prints is not shown. A run
    that fails keeps its history and its row. Ctrl-C ends the comparison with the runs that there are; seeds are the
    outer loop, so that these are paired.
    """
    cluster = Cluster() if cluster is None else cluster
    check_pairs([_name(strategy) for strategy in strategies], seeds)
    check_script_joins(cluster)
    runs = _Runs(compiled(path, arguments), cluster, measured, watcher or Watcher(), earlier)
    interrupted = False
    try:
        for seed in seeds:
            for strategy in sorted(strategies, key=lambda one: one is not None):  # the script's own first
                if strategy is None or str(strategy) != runs.own_label:
                    runs.add(strategy, seed)
    except KeyboardInterrupt:
        interrupted = True
    entries = runs.entries()
    if not entries:
        return Findings(None, interrupted=interrupted)
    baseline = next((entry.label for entry in entries if entry.label.startswith("AllReduce(")), entries[0].label)
    comparison = Comparison(
        entries=entries,
        workload=runs.script.path.name,
        cluster=str(cluster),
        target_loss=target,
        reproduce=reproduce,
        baseline=baseline,
    )
    return Findings(comparison, interrupted=interrupted, notes=_notes(comparison, runs.own_label, strategies))


def is_own(run: Run) -> bool:
    """Whether the script of ``run`` used its own strategy."""
    return "script" in run.config and "strategy" not in run.config


class _Runs:
    """The runs of a script, by strategy in the order of their first runs."""

    def __init__(
        self, script: Script, cluster: Cluster, measured: bool, watcher: Watcher, earlier: Sequence[Run]
    ) -> None:
        self.script, self._watcher = script, watcher
        self._settings: dict[str, Any] = {"cluster": cluster, "measured": measured}
        self._earlier = [run for run in earlier if run.status == "finished"]
        self._made: dict[str, list[Run]] = {}

    @property
    def own_label(self) -> str | None:
        """The script's own strategy, or strategies where its sessions differ; None before a session of it has begun."""
        runs = self._made.get(OWN, [])
        return next((" and ".join(dict.fromkeys(run.record["strategies"])) for run in runs if run.strategy), None)

    def add(self, strategy: Strategy[Any] | None, seed: int) -> None:
        """Run once, or take the earlier run.

        A failed run is a result; an interrupted one is kept before the interruption is raised again.
        """
        self._watcher.begin(_OWN_NOTE if strategy is None else str(strategy), seed, None, tuning=False)
        settings = {"strategy": strategy, "seed": seed, **self._settings}
        wanted = script_configuration(self.script, **settings)
        run = next((run for run in self._earlier if dict(run.config) == wanted), None)
        try:
            if run is None:
                with redirect_stdout(io.StringIO()):
                    run = simulate_compiled(self.script, progress=self._watcher.step, **settings)
        except (RunError, Interrupted) as error:
            if error.run is None:
                raise
            self._keep(strategy, error.run)
            if isinstance(error, Interrupted):
                raise
        else:
            self._keep(strategy, run)

    def _keep(self, strategy: Strategy[Any] | None, run: Run) -> None:
        self._made.setdefault(_name(strategy), []).append(run)
        self._watcher.end(run, tuning=False)

    def entries(self) -> list[Entry]:
        return [
            Entry(self.own_label or OWN, runs, _OWN_NOTE) if name == OWN else Entry(name, runs)
            for name, runs in self._made.items()
        ]


def _name(strategy: Strategy[Any] | None) -> str:
    return OWN if strategy is None else str(strategy)


def _notes(comparison: Comparison, own_label: str | None, strategies: Sequence[Strategy[Any] | None]) -> list[str]:
    """Return notes on the runs that a user might not expect."""
    notes = []
    if own_label in [str(strategy) for strategy in strategies]:
        alone = "; add other strategies with -s to compare them" if len(comparison.entries) == 1 else ""
        notes.append(f"{own_label} is the script's own strategy, so it ran once with each seed{alone}.")
    models = [[run.parameters for run in entry.runs if run.status == "finished"] for entry in comparison.entries]
    several = [found for found in models if len(found) > 1]
    if several and all(torch.equal(found[0], other) for found in several for other in found[1:]):
        notes.append(
            "every seed gave the same model: the script seeds its own generators, so the seeds change step times only. "
            "Generators that the script does not seed start from the run's seed."
        )
    return notes
