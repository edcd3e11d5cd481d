"""Read plan.toml and the plan.json beside it: the recommended strategy, what the plan assumes, what it predicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from tacit.errors import TacitError, naming, require
from tacit.planning.ledger import Ledger, ledger_beside
from tacit.planning.replanning import replanned
from tacit.profiles.profile import profile_of_table
from tacit.registry.tables import Table, check_keys, checked, parsed, read_toml
from tacit.session.planned import Planned, set_plan_reader

_KEYS: Final = ("strategy", "workers", "ranks", "why", "lr", "predicted", "settings")


def read_plan(path: Path) -> Planned:
    """Return what ``Plan.save`` wrote to plan.toml, and to plan.json if it is there and belongs to the same plan."""
    if not path.exists():
        raise TacitError(f"{path} does not exist; tacit plan --out {path} writes it.")
    table = read_toml(path, "plan")
    check_keys(table, _KEYS, f"{path}")
    require("strategy" in table, f"{path} has no strategy; tacit plan writes such files.")
    with naming(path):
        workers: Any = table.get("workers")
        ranks = checked("ranks", table.get("ranks", []), list)
        require(
            workers is None or not ranks or len(ranks) == workers,
            f"{path} has workers={workers} and ranks={ranks}; give as many ranks as workers.",
        )
        return planned_of(table, _read_json(path.with_suffix(".json")), Ledger(ledger_beside(path)))


def planned_of(table: Table, everything: Mapping[str, Any], ledger: Ledger | None = None) -> Planned:
    """Return the strategy of plan.toml. everything: the content of plan.json; empty: plan.toml has to suffice."""
    lr: Any = table.get("lr")
    workers: Any = table.get("workers")
    strategy = parsed("strategy", table["strategy"], "strategies")
    predicted: dict[str, Any] = dict(checked("predicted", table.get("predicted", {}), dict))
    is_same = bool(everything) and _best_of(everything) == (str(strategy), table.get("ranks"))
    if is_same:
        predicted = {**everything.get("prediction", {}), **predicted}
    can_replan = is_same and "rounds" in predicted and "profile" in everything
    return Planned(
        strategy=strategy,
        workers=None if workers is None else checked("workers", workers, int),
        lr=None if lr is None else checked("lr", lr, float),
        predicted=predicted,
        replan=partial(replanned, predicted, everything["profile"], strategy) if can_replan else None,
        ended=None if ledger is None or not predicted else ledger.add_run,
    )


def _best_of(everything: Mapping[str, Any]) -> tuple[str, list[int]]:
    row = everything["rows"][everything["best"]]
    return row["strategy"], row["ranks"]


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of plan.json; empty if there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _best_of(found)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return {}
    return dict(found)


def settings_of(path: Path) -> Table:
    """Return the settings of a run that plan.toml recommends, as the table of a TOML file."""
    found = read_plan(path)
    return {
        "strategies": [str(found.strategy)],
        **({} if found.lr is None else {"lr": found.lr}),
        "cluster": {} if found.workers is None else {"workers": found.workers},
    }


def simulated_settings(path: Path) -> Table:
    """Return the settings with which the simulator repeats what plan.toml predicts, as the table of a TOML file.

    The cluster is that of the plan's profile, which is in the plan.json beside plan.toml; without it, only the number
    of workers is known.
    """
    found, everything = settings_of(path), _read_json(path.with_suffix(".json"))
    with naming(path):
        own = checked("settings", read_toml(path, "plan").get("settings", {}), dict)
    names = ("workload", "optimizer", "momentum", "weight_decay", "schedule")
    found |= {name: own[name] for name in names if "script" not in own and own.get(name) is not None}
    if not everything or _best_of(everything)[0] != found["strategies"][0]:
        return found
    if "lr" not in found and everything.get("lr") is not None:
        found["lr"] = everything["lr"]
    with naming(path.with_suffix(".json")):
        profile = profile_of_table(dict(everything["profile"]), path.with_suffix(".json"))
        found["cluster"] = profile.of_ranks(_best_of(everything)[1]).cluster().table()
    return found


set_plan_reader(read_plan)
