"""Held-out error against time, one panel for each place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.papers.drawing import Curve, draw
from benchmarks.time_to_accuracy.methods import DDP, LOCAL_PEERS, PLAN, POWERSGD
from benchmarks.time_to_accuracy.places import TITLES
from benchmarks.time_to_accuracy.search import Choice
from benchmarks.time_to_accuracy.setting import Setting

_OTHERS: Final = "others"


def draw_curves(setting: Setting, choices: Sequence[Choice], cells: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the run of the median seed of each method; those that a reader compares first are named."""
    panels: dict[str, list[Curve]] = {}
    for choice in choices:
        cell = next(one for one in cells if (one["place"], one["method"]) == (choice.spot.key, choice.method))
        curve = _median_curve(setting, choice, cell)
        if curve is None:
            continue
        kind = _kind(choice, cell, cells)
        points = [(time_s, 1 - found) for _, time_s, found in curve if time_s > 0 and found < 1]
        x, y = ([point[axis] for point in points] for axis in (0, 1))
        own = panels.setdefault(TITLES[choice.spot.key], [])
        own.append(Curve(kind, choice.method.removeprefix("tacit "), x, y, kind != _OTHERS))
    if panels:
        order = {title: sorted(own, key=lambda curve: curve.kind != _OTHERS) for title, own in panels.items()}
        label = dict.fromkeys(order, "seconds; vertically the held-out error")
        floor = (1 - setting.task.target) * 0.7
        draw(file, order, label, floor)


def _median_curve(setting: Setting, choice: Choice, cell: dict[str, Any]) -> list[Any] | None:
    rows = [setting.rows.find(**choice.key, seed=seed) for seed in setting.seeds]
    known = [row for row in rows if row is not None and row.get("curve")]
    if not known:
        return None
    median_s = cell.get("time_s", 0.0)
    found: list[Any] = min(known, key=lambda row: abs((row["reached"] or {"time_s": 1e9})["time_s"] - median_s))[
        "curve"
    ]
    return found


def _kind(choice: Choice, cell: dict[str, Any], cells: Sequence[dict[str, Any]]) -> str:
    """Return DDP, PowerSGD, the best peer that averages models, the best of ours, the plan, or others."""
    own = [one for one in cells if one["place"] == choice.spot.key and "time_s" in one]
    if choice.method in (DDP, POWERSGD):
        return choice.method
    local = [one for one in own if one["method"] in LOCAL_PEERS]
    if local and cell is min(local, key=lambda one: one["time_s"]):
        return "best peer"
    ours = [one for one in own if one["is_ours"] and one["method"] != PLAN]
    if ours and cell is min(ours, key=lambda one: one["time_s"]):
        return "best of ours"
    return PLAN if choice.method == PLAN else _OTHERS
