"""From the options of a command to the settings that they ask for."""

from __future__ import annotations

from typing import Any, Final

from tacit.cli import units
from tacit.cli.settings import Settings, read_cluster, read_file, settle
from tacit.planning.files import simulated_settings
from tacit.registry import find_alias, parse
from tacit.registry.tables import Table

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
    "evaluate_every_s",
    "until_loss",
    "engine",
    "device",
    "threads",
    "timing_only",
)


def settings_from(given: dict[str, Any], *, single: bool) -> Settings:
    """Return the settings of a command: its options over those of its ``config`` file."""
    beneath: Table = {"strategies": ["AllReduce()"]} if single else {}
    if given["config"] is not None:
        beneath |= read_file(given["config"], single=single)
    cluster = {} if given.get("cluster") is None else {"cluster": read_cluster(given["cluster"])}
    return settle(beneath, planned_table(given), cluster, table_from(given))


def planned_table(given: dict[str, Any]) -> Table:
    """Return the settings of the plan in ``--plan`` of a simulation; empty without it."""
    return {} if given.get("simulated_plan") is None else simulated_settings(given["simulated_plan"])


def alias_notes(given: dict[str, Any]) -> list[str]:
    """Return a note for each strategy that is given by a paper's name."""
    asked = [*(given.get("strategies") or ()), *filter(None, [given.get("strategy")])]
    found = [(text, find_alias(text.partition("(")[0], "strategies")) for text in asked]
    return [f"{alias.name} stands for {parse(text, 'strategies')} ({alias.source})" for text, alias in found if alias]


def table_from(given: dict[str, Any]) -> Table:
    """Return a command's options as the table of a TOML file."""
    table: Table = {name: given[name] for name in _SAME_NAME if given.get(name) is not None}
    if given.get("strategies"):
        table["strategies"] = given["strategies"]
    if given.get("strategy") is not None:
        table["strategies"] = [given["strategy"]]
    if given.get("seeds") is not None and given.get("seed") is not None:
        raise ValueError("--seeds and --seed cannot be combined; write several seeds as --seeds 4,7.")
    if given.get("seeds") is not None:
        table["seeds"] = units.seeds(given["seeds"])
    if given.get("seed") is not None:
        table["seeds"] = [given["seed"]]
    if isinstance(given.get("lr"), str):
        table["lr"] = units.rates(given["lr"])
    train = {
        name: given[name] for name in ("checkpoint_every", "log", "interface", "security", "server") if given.get(name)
    }
    if given.get("plan_file") is not None:
        train["plan"] = str(given["plan_file"].absolute())
    if given.get("timeout") is not None:
        train["timeout_s"] = units.seconds(given["timeout"])
    return table | {"cluster": _cluster_from(given), "train": train}


def _cluster_from(given: dict[str, Any]) -> Table:
    readers: dict[str, tuple[str, Any]] = {
        "workers": ("workers", None),
        "compute": ("compute", None),
        "latency": ("latency_s", units.seconds),
        "bandwidth": ("bandwidth_bytes_per_s", units.bytes_per_second),
        "hosts": ("hosts", units.hosts),
        "collectives": ("collectives", None),
        "speed": ("speed", lambda texts: dict(map(units.assignment, texts))),
        "faults": ("faults", list),
    }
    return {
        key: given[option] if read is None else read(given[option])
        for option, (key, read) in readers.items()
        if given.get(option) not in (None, [])
    }
