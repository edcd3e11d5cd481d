"""Read plan.toml: the strategy that a plan recommends, what it assumes, and what it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tacit.errors import TacitError, require
from tacit.registry.tables import Table, check_keys, checked, parsed, read_toml
from tacit.session.planned import Planned, set_plan_reader

_KEYS: Final = ("strategy", "workers", "ranks", "why", "lr", "predicted", "settings")


def read_plan(path: Path) -> Planned:
    """Return what ``Plan.save`` wrote to plan.toml."""
    if not path.exists():
        raise TacitError(f"{path} does not exist; tacit plan --out {path} writes it.")
    table = read_toml(path, "plan")
    check_keys(table, _KEYS, f"{path}")
    require("strategy" in table, f"{path} has no strategy; tacit plan writes such files.")
    lr: Any = table.get("lr")
    workers: Any = table.get("workers")
    ranks: Any = table.get("ranks")
    require(
        workers is None or ranks is None or len(ranks) == workers,
        f"{path} has workers={workers} and ranks={ranks}; give as many ranks as workers.",
    )
    return Planned(
        strategy=parsed("strategy", table["strategy"], "strategies"),
        workers=None if workers is None else checked("workers", workers, int),
        lr=None if lr is None else checked("lr", lr, float),
        predicted=checked("predicted", table.get("predicted", {}), dict),
    )


def settings_of(path: Path) -> Table:
    """Return the settings of a run that plan.toml recommends, as the table of a TOML file."""
    found = read_plan(path)
    return {
        "strategies": [str(found.strategy)],
        **({} if found.lr is None else {"lr": found.lr}),
        "cluster": {} if found.workers is None else {"workers": found.workers},
    }


set_plan_reader(read_plan)
