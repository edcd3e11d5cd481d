"""``tacit compare --resume``: results of an earlier comparison, and the options that may extend it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from tacit.cli.option_tables import settings_from
from tacit.cli.scripts import ScriptPlan, script_plan
from tacit.cli.settings import Settings, changes, read_file, settle
from tacit.compare.tuning import Tuning, tunings_from
from tacit.errors import require
from tacit.record.run import Run
from tacit.simulation import configuration
from tacit.simulation.scripts.run import compiled

_MAY_CHANGE: Final = ("strategies", "seeds", "target")
"""Settings that keep finished runs valid: they add runs, or measure them differently."""
_SHOWN: Final = 3
"""Number of differences that an error lists."""


@dataclass(frozen=True)
class Earlier:
    """Results of an earlier comparison that are reused."""

    runs: tuple[Run, ...] = ()
    tunings: Mapping[str, Tuning] = field(default_factory=dict)


def resumed(folder: Path, given: dict[str, Any]) -> tuple[Settings | ScriptPlan, Earlier]:
    """Return the settings of the comparison in ``folder``, extended by the options ``given``, and its results.

    Raise ``ValueError`` where that would replace finished runs.
    """
    described, numbers = folder / "compare.toml", folder / "compare.json"
    require(
        described.exists(),
        f"--resume {folder} must hold a comparison, and it has no {described.name}; "
        f"give a folder that tacit compare wrote.",
    )
    before_script = script_plan({**dict.fromkeys(given), "config": described}, single=False)
    if before_script is not None:
        return _resumed_script(folder, before_script, {**given, "config": described})
    require(
        given["script"] is None,
        f"--resume {folder} holds a comparison on a workload, not on {given['script']}; leave out {given['script']}, "
        f"or start another comparison with --out.",
    )
    before = settle(read_file(described, single=False))
    asked = settings_from({**given, "config": described}, single=False)
    asked = replace(
        asked, strategies=_union(before.strategies, asked.strategies), seeds=_union(before.seeds, asked.seeds)
    )
    runs = _runs_in(folder)
    finished = [run for run in runs if run.status == "finished"]
    found = _differences(before, asked)
    _refuse_to_replace(folder, finished, found or _edits(finished, asked))
    if found or not numbers.exists():
        tunings: Mapping[str, Tuning] = {}
    else:
        tunings = tunings_from(json.loads(numbers.read_text(encoding="utf-8")))
    if asked.tune and finished:
        _check_tuning_seeds(folder, before, asked, tunings)
    return asked, Earlier(runs, tunings)


def _resumed_script(folder: Path, before: ScriptPlan, given: dict[str, Any]) -> tuple[ScriptPlan, Earlier]:
    asked = script_plan(given, single=False)
    assert asked is not None
    asked = replace(
        asked, strategies=_union(before.strategies, asked.strategies), seeds=_union(before.seeds, asked.seeds)
    )
    runs = _runs_in(folder)
    finished = [run for run in runs if run.status == "finished"]
    _refuse_to_replace(folder, finished, _differences(before, asked) or _script_edits(finished, asked))
    return asked, Earlier(runs)


def _script_edits(finished: Sequence[Run], asked: ScriptPlan) -> list[str]:
    """Return how compare.toml or the script differs from those of the finished runs."""
    sha256, wanted = compiled(asked.script).sha256, asked.table()
    for run in finished:
        made_with = {key: run.config.get(key) for key in ("script", "arguments", "threads", "cluster")}
        if found := list(changes(made_with, wanted)):
            return found
        if run.record.get("script_sha256") != sha256:
            return [f"{asked.script.name} was edited since"]
    return []


def _runs_in(folder: Path) -> tuple[Run, ...]:
    return tuple(Run.load(path.parent) for path in sorted((folder / "runs").glob("*/run.json")))


def _differences(before: Settings | ScriptPlan, asked: Settings | ScriptPlan) -> list[str]:
    """Return the settings that differ from ``before`` and would make other runs."""
    old, new = before.table(), asked.table()
    return list(changes({k: old[k] for k in old if k not in _MAY_CHANGE}, new))


def _refuse_to_replace(folder: Path, finished: Sequence[Run], found: Sequence[str]) -> None:
    count = f"{len(finished)} finished run{'s' if len(finished) > 1 else ''}"
    require(
        not (finished and found),
        f"--resume {folder} would replace {count}: {', '.join(found[:_SHOWN])}{', …' if len(found) > _SHOWN else ''}. "
        f"--resume may add --seeds and --strategy and change --target; for other settings start another comparison: "
        f"tacit compare --config {folder / 'compare.toml'} … --out FOLDER.",
    )


def _edits(finished: Sequence[Run], asked: Settings) -> list[str]:
    """Return how compare.toml, if edited since, differs from the settings of the finished runs that it names."""
    torch.set_num_threads(asked.threads)  # part of a run's configuration
    strategies = {str(strategy): strategy for strategy in asked.strategies}
    for run in finished:
        if run.strategy in strategies and run.seed in asked.seeds:
            is_free = asked.tune or run.config.get("lr") in asked.rates
            lr = run.config.get("lr", asked.lr) if is_free else asked.lr
            settings = {**asked.training(), "lr": lr}
            wanted = configuration(asked.workload, strategies[run.strategy], seed=run.seed, **settings)
            if found := list(changes(run.config, wanted)):
                return found
    return []


def _check_tuning_seeds(folder: Path, before: Settings, asked: Settings, tunings: Mapping[str, Tuning]) -> None:
    """Raise ``ValueError`` for seeds that chose learning rates, and for new seeds while the choice is not recorded."""
    for seed in asked.seeds:
        free = max(*asked.seeds, *(tuning.seed for tuning in tunings.values()), seed) + 1
        require(
            all(tuning.seed != seed for tuning in tunings.values()),
            f"seed {seed} was used to choose the learning rates in {folder} and cannot be reported; "
            f"use other seeds, such as --seeds {free},{free + 1}.",
        )
    require(
        all(str(strategy) in tunings for strategy in before.strategies) or max(asked.seeds) == max(before.seeds),
        f"the search for learning rates in {folder} is not complete, and new seeds need it; "
        f"first run tacit compare --resume {folder} without --seeds.",
    )


def _union(old: Sequence[Any], new: Sequence[Any]) -> tuple[Any, ...]:
    return (*old, *(one for one in new if one not in old))
