"""Settings of a run or comparison: from defaults, a TOML file and options, and back to TOML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tacit.cluster import Cluster
from tacit.core.compatibility.deprecation import SERVER_VALUES
from tacit.errors import naming, nearest, require
from tacit.profiles import Profile
from tacit.record.files import toml_text
from tacit.record.step_times import moved_to_files
from tacit.registry import modules_in
from tacit.registry.tables import Table, check_keys, checked, cluster_of, listed, parsed, read_toml
from tacit.registry.units import SHORT_NAMES, with_units
from tacit.session.model.extra_state import MomentsEvery
from tacit.strategies import Strategy
from tacit.training.schedules import Schedule
from tacit.workloads import Workload

DEFAULTS: Final[Mapping[str, Any]] = {
    "workload": 'digits(model="mlp")',
    "strategies": [
        "AllReduce()",
        "LocalSGD(period=Every(8))",
        "LocalSGD(period=VariancePeriod(initial=4))",
        "LocalSGD(period=LinearPeriod(initial=4, rounds=20))",
    ],
    "seeds": [0],
    "steps": 500,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "optimizer_state": "keep",
    "moments_every": None,
    "schedule": None,
    "evaluate_every": None,
    "evaluate_every_s": None,
    "until_loss": None,
    "target": None,
    "tune": False,
    "engine": "auto",
    "device": "cpu",
    "threads": 1,
    "timing_only": False,
}
_COMPARE_ONLY: Final = ("strategies", "seeds", "target", "tune")
_SIMULATE_ONLY: Final = ("timing_only", "until_loss", "optimizer_state", "moments_every")
_CLUSTER_KEYS: Final = tuple(field.name for field in dataclasses.fields(Cluster))
_TRAIN_KEYS: Final[Mapping[str, Any]] = {
    "checkpoint_every": int,
    "log": str,
    "timeout_s": float,
    "interface": str,
    "security": str,
    "server": str,
    "plan": str,
}
"""The table ``train``: settings of real processes, which the simulator ignores."""
SERVERS: Final = ("rank0", "process", "remote")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings that decide what a comparison or a single run computes."""

    workload: Workload
    strategies: tuple[Strategy[Any], ...]
    cluster: Cluster
    seeds: tuple[int, ...]
    steps: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    tune: bool
    engine: str
    device: str
    threads: int
    timing_only: bool
    rates: tuple[float, ...] = ()  # learning rates of a comparison; ``lr`` is the first
    schedule: Schedule | None = None
    evaluate_every: int | None = None
    evaluate_every_s: float | None = None
    until_loss: float | None = None
    target: float | None = None
    optimizer_state: str = "keep"
    moments_every: MomentsEvery = None

    def training(self) -> dict[str, Any]:
        """Return the arguments that ``simulate`` and ``compare`` share."""
        names = ("cluster", "steps", "optimizer", "lr", "momentum", "weight_decay", "schedule", "evaluate_every")
        return {name: getattr(self, name) for name in (*names, "evaluate_every_s", "engine", "device")}

    def toml(self, folder: Path | None = None) -> str:
        """Return the TOML file that ``tacit compare --config`` reads; long lists are written into ``folder``."""
        table = self.table() if folder is None else moved_to_files(self.table(), folder)
        return toml_text(table, comment="tacit compare --config compare.toml repeats this comparison.")

    def table(self) -> Table:
        """Return the settings as the table of the TOML file."""
        table: Table = {"workload": str(self.workload), "strategies": [str(s) for s in self.strategies]}
        for name in DEFAULTS:
            if name not in (*table, *_SIMULATE_ONLY):
                value = getattr(self, name)
                table[name] = (
                    str(value) if isinstance(value, Schedule) else list(value) if isinstance(value, tuple) else value
                )
        if len(self.rates) > 1:
            table["lr"] = list(self.rates)
        return table | {"cluster": self.cluster.table()}


def read_file(path: Path, *, single: bool) -> Table:
    """Return the settings of a TOML file; ``single``: of one run rather than of a comparison."""
    table = read_toml(path, "--config")
    if isinstance(table.get("cluster"), dict):
        with naming(path):
            table["cluster"] = with_units(table["cluster"])
    foreign = _COMPARE_ONLY if single else _SIMULATE_ONLY
    own = ["strategy", "seed", "train"] if single else []
    check_keys(table, [key for key in (*DEFAULTS, "cluster") if key not in foreign] + own, f"{path}")
    for name, keys in (("cluster", (*_CLUSTER_KEYS, *SHORT_NAMES)), ("train", _TRAIN_KEYS)):
        inner = table.get(name, {})
        require(
            isinstance(inner, dict), f"{path}: {name}={inner!r} must be a table; write [{name}] and its keys below."
        )
        check_keys(inner, keys, f"{path}, table [{name}]")
    if single:
        checked("lr", table.get("lr", 0.1), float)
    if isinstance(table.get("seeds"), int):
        table["seeds"] = list(range(table["seeds"]))
    for one, many in (("strategy", "strategies"), ("seed", "seeds")):
        if one in table:
            table[many] = [table.pop(one)]
    return table


def import_notes(path: Path) -> list[str]:
    """Return a note that names the modules that reading the TOML file of a run folder imports, if any."""
    modules = list(dict.fromkeys(name for text in _texts(read_toml(path, "")) for name in modules_in(text)))
    return [f"{path} names modules outside tacit, which are imported: {', '.join(modules)}."] if modules else []


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts that are read as notation, which excludes scripts and their arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (text for key, inner in items if key not in ("script", "arguments") for text in _texts(inner))


def read_cluster(path: Path) -> Table:
    """Return the cluster of a TOML file (its table [cluster], or all of it), or the measured one of a run folder."""
    if path.is_dir():
        return Profile.load(path).cluster().table()
    table = read_toml(path, "--cluster")
    if isinstance(table.get("cluster"), dict):
        table = table["cluster"]
    with naming(path):
        table = with_units(table)
    check_keys(table, _CLUSTER_KEYS, f"{path}")
    return table


def settle(*tables: Table) -> Settings:
    """Return the settings in ``tables``, of which later ones override earlier ones, over the defaults."""
    merged: Table = {**DEFAULTS, "cluster": {}}
    for table in tables:
        cluster = {**merged["cluster"], **table.get("cluster", {})}
        merged |= {key: value for key, value in table.items() if value is not None} | {"cluster": cluster}
    rates = tuple(checked("lr", lr, float) for lr in _rates(merged["lr"]))
    merged["lr"] = rates[0]
    given = {name: checked(name, value, kind) for name, kind in _KINDS.items() if (value := merged[name]) is not None}
    require(given["threads"] >= 1, f"threads={given['threads']} must be at least 1.")
    schedule = merged["schedule"]
    return Settings(
        workload=parsed("workload", merged["workload"], "workloads"),
        strategies=tuple(parsed("strategies", text, "strategies") for text in listed(merged, "strategies")),
        cluster=cluster_of(merged["cluster"]),
        seeds=tuple(checked("seeds", seed, int) for seed in listed(merged, "seeds")),
        schedule=None if schedule is None else parsed("schedule", schedule, "schedules"),
        rates=rates,
        moments_every=merged["moments_every"],
        **given,
    )


_KINDS: Final[Mapping[str, Any]] = {
    "steps": int,
    "optimizer": str,
    "lr": float,
    "momentum": float,
    "weight_decay": float,
    "optimizer_state": str,
    "target": float,
    "evaluate_every": int,
    "evaluate_every_s": float,
    "until_loss": float,
    "tune": bool,
    "engine": str,
    "device": str,
    "threads": int,
    "timing_only": bool,
}


def train_settings(*tables: Table) -> Table:
    """Return the merged ``train`` tables, of which later ones override earlier ones, with old values renamed."""
    merged: Table = {}
    for table in tables:
        merged |= {key: checked(key, value, _TRAIN_KEYS[key]) for key, value in table.get("train", {}).items()}
    every = merged.get("checkpoint_every", 1)
    require(every >= 1, f"checkpoint_every={every} must be at least 1; leave it out for no checkpoints.")
    if "server" in merged:
        where = str(merged["server"])
        merged["server"] = where = SERVER_VALUES.get(where, where)
        require(where in SERVERS, f"server={where!r} must be one of {', '.join(SERVERS)}{nearest(where, SERVERS)}")
    return merged


def renamed_value_notes(*tables: Table) -> list[str]:
    """Return a note for each deprecated value in the ``train`` tables."""
    given = [table.get("train", {}).get("server") for table in tables]
    return [
        f"server={old} is deprecated and will be removed in version 0.3; use server={SERVER_VALUES[old]}."
        for old in dict.fromkeys(given)
        if isinstance(old, str) and old in SERVER_VALUES
    ]


def _rates(value: Any) -> list[Any]:
    require(value != [], "lr=[] is empty; name at least one learning rate.")
    return value if isinstance(value, list) else [value]


def parsed_strategy(text: Any) -> Strategy[Any]:
    """Return the strategy for the text of an option or a TOML file."""
    strategy: Strategy[Any] = parsed("strategies", text, "strategies")
    return strategy


def check_device(settings: Settings) -> None:
    """Raise ``ValueError`` unless torch finds the device on this machine."""
    name = settings.device
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} must be a device of torch; write cpu, cuda or cuda:1.") from None
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        require(found > 0, f"device={name!r}: torch finds no GPU on this machine; leave out --device to use the CPU.")
        require(
            (device.index or 0) < found,
            f"device={name!r}: torch finds {found} GPUs on this machine; write cuda:0 to cuda:{found - 1}.",
        )


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a text for each setting of ``old`` that differs in ``new``; tables are compared key by key."""
    for key in old:
        if isinstance(old[key], Mapping) and isinstance(new.get(key), Mapping):
            yield from changes(old[key], new[key], f"{prefix}{key}.")
        elif old[key] != new.get(key):
            yield f"{prefix}{key}={new.get(key)!r} instead of {old[key]!r}"
    yield from (f"{prefix}{key}={new[key]!r}" for key in new if key not in old and prefix)
