"""The tables, figures and verdicts of the papers' benchmark on a GPU, from the rows of its runs."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import tacit
from benchmarks.papers.common import spread_of
from benchmarks.papers.drawing import Curve, draw
from benchmarks.papers_cuda.parts import GROUPS, TITLES, Group
from benchmarks.papers_cuda.search import Search, final_rows, is_tuning
from benchmarks.papers_cuda.trainings import Training, mean_period

NETWORKS: Final = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10}
MODELS: Final = {"GoogLeNet": (6.2e6, 0.15), "VGG16": (15e6, 0.09), "ResNet50": (25.6e6, 0.16)}
"""Parameters and seconds of a step. The paper's times are not known: these are guesses for GPUs of its years."""
CLAIMS: Final = {"10 Gbit/s": (1.46, 1.95), "100 Gbit/s": (1.14, 1.27)}
AXES: Final = {1: (2, "bytes sent"), 2: (2, "bytes sent"), 3: (2, "bytes sent"), 4: (1, "virtual time (s)")}
"""The column of a curve that is the horizontal axis of a part's figure."""

Table = dict[str, dict[str, Any]]


def step_s(model: str, network: str, period: float, workers: int = 16) -> float:
    """Return the mean time of a step with a ring all-reduce every ``period`` steps, at the full rate of the network."""
    parameters, compute_s = MODELS[model]
    ring_s = 2 * (workers - 1) / workers * 4 * parameters / NETWORKS[network]
    return compute_s + ring_s / period


def write_summary(rows: dict[Training, dict[str, Any]], path: Path, groups: Sequence[Group] = GROUPS) -> None:
    """Write the JSON, the Markdown with tables beside it, and a figure for each part that has runs of its seeds."""
    search = Search(groups)
    tables = {group: table for group in groups if (table := _table(rows, search, group))}
    found = {
        "command": "python -m benchmarks.papers_cuda",
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "tables": {f"part {group.part}, {group.name}": table for group, table in tables.items()},
        "wall_s": sum(row["wall_s"] for row in rows.values()),
    }
    lines = ["# The papers on CIFAR-10", "", f"`{found['command']}`; {len(rows)} runs, {found['wall_s']:.0f} s", ""]
    for part in sorted({group.part for group in tables}):
        own = {group: table for group, table in tables.items() if group.part == part}
        figure = path.with_name(f"{path.stem}_{part}.svg")
        lines += ["", f"## {TITLES[part]}", ""]
        if _draw(figure, part, {group: _curves(rows, search, group) for group in own}):
            lines += [f"![curves]({figure.name})", ""]
        for group, table in own.items():
            lines += [*_markdown(group, table), "", *_VERDICTS[part](table), ""]
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _table(rows: dict[Training, dict[str, Any]], search: Search, group: Group) -> Table:
    """Return the numbers of every method that has runs of its seeds."""
    table: Table = {}
    for method in group.methods:
        rate = search.best_rate(group, method, rows)
        final = [] if rate is None else final_rows(rows.values(), group, method, rate)
        if not final:
            continue
        table[method] = {
            "lr": rate,
            "rates": sorted(one.lr for one in rows if is_tuning(one, group, method)),
            "seeds": [row["seed"] for row in final],
            **{name: spread_of(row[name] for row in final) for name in ("accuracy", "loss", "rounds", "bytes_sent")},
            "steps": spread_of(row["steps"] for row in final),
            "time_s": spread_of(row["time_s"] for row in final),
            "period": spread_of(mean_period(row) for row in final),
        }
    return table


def _curves(rows: dict[Training, dict[str, Any]], search: Search, group: Group) -> list[Curve]:
    """Return the test error of each method, the mean over seeds."""
    curves, column = [], AXES[group.part][0]
    for method in group.methods:
        rate = search.best_rate(group, method, rows)
        final = [] if rate is None else final_rows(rows.values(), group, method, rate)
        drawn = [row["curve"] for row in final]
        points = [
            (float(np.mean([point[column] for point in same])), 1 - float(np.mean([point[4] for point in same])))
            for same in zip(*drawn, strict=False)
        ]
        points = [point for point in points if point[0] > 0]
        if points:
            curves.append(Curve(method, method, [x for x, _ in points], [y for _, y in points], True))
    return curves


def _draw(path: Path, part: int, found: dict[Group, list[Curve]]) -> bool:
    panels = {f"{group.name}: test error": curves for group, curves in found.items() if curves}
    least = [y for curves in panels.values() for curve in curves for y in curve.y if y > 0]
    if not least:
        return False
    draw(path, panels, dict.fromkeys(panels, AXES[part][1]), floor=0.9 * min(least))
    return True


def _markdown(group: Group, table: Table) -> list[str]:
    setting, counted = group.setting, "steps" if group.setting.is_timed else "rounds"
    lines = [
        f"{group.name}: {setting.workers} workers, batch {setting.batch}, momentum {setting.momentum:g}, {setting.epochs} epochs of 20,000 pictures"
        + (" of asynchronous SGD in virtual time" if setting.is_timed else "")
        + f", crops and flips, 10,000 test pictures; rates searched with {setting.tuning_epochs} epochs on a seed of its own.",
        "",
        f"| method | lr (of) | seeds | test accuracy | loss | {counted} | sent | virtual time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, row in table.items():
        tried = f" ({', '.join(f'{lr:g}' for lr in row['rates'])})" if row["rates"] else ""
        lines.append(
            f"| {method} | {row['lr']:g}{tried} | {len(row['seeds'])} | {_percent(row)} | {row['loss']['mean']:.3f} | "
            f"{row[counted]['mean']:.0f} | {row['bytes_sent']['mean'] / 1e9:.2f} GB | {row['time_s']['mean']:.4g} s |"
        )
    return lines


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['accuracy']['mean']:.2f} ± {100 * row['accuracy']['standard_error']:.2f} %"


def _adpsgd(table: Table) -> list[str]:
    """Return the paper's claims with what was measured."""
    lines = []
    if {"ADPSGD", "QSGD, 8 bit"} <= set(table):
        ours, theirs = table["ADPSGD"], table["QSGD, 8 bit"]
        lines.append(
            f"- Half of QSGD's communication at equal accuracy: {_share(ours, theirs, 'bytes_sent'):.2f} of the bytes, accuracy "
            f"{_difference(ours, theirs)} points against QSGD with 8 bit."
        )
    if {"ADPSGD", "CPSGD"} <= set(table):
        ours, constant = table["ADPSGD"], table["CPSGD"]
        lines.append(
            f"- Higher accuracy than a constant period with less communication: {_difference(ours, constant)} points against "
            f"CPSGD, with {_share(ours, constant, 'rounds'):.2f} of its rounds."
        )
    if "ADPSGD" in table:
        period = table["ADPSGD"]["period"]["mean"]
        for network, (low, high) in CLAIMS.items():
            gains = {model: step_s(model, network, 1) / step_s(model, network, period) for model in MODELS}
            numbers = ", ".join(f"{model} {value:.2f}" for model, value in gains.items())
            lines.append(
                f"- Speed-up at {network}, stated {low} to {high}: {numbers} (ring at full rate, guessed step times)."
            )
    return lines


def _swarm(table: Table) -> list[str]:
    lines = []
    large = table.get("large-batch SGD")
    for name, row in table.items():
        if name.startswith("SwarmSGD") and large is not None:
            lines.append(
                f"- {name} against large-batch SGD at equal epochs: {_difference(row, large)} points, {_share(row, large, 'time_s'):.2f} "
                f"of the virtual time, {_share(row, large, 'bytes_sent'):.2f} of the bytes."
            )
    for h in (2, 4):
        full, eight = table.get(f"SwarmSGD, H = {h}"), table.get(f"SwarmSGD, H = {h}, 8 bit")
        if full and eight:
            lines.append(f"- 8 bit against full precision, H = {h}: {_difference(eight, full)} points.")
    return lines


def _ef21(table: Table) -> list[str]:
    if "EF" not in table:
        return []
    return [
        f"- {name} against EF: {_difference(row, table['EF'])} points with {_share(row, table['EF'], 'bytes_sent'):.2f} of the bytes."
        for name, row in table.items()
        if name not in ("EF", "SGD")
    ]


def _servers(table: Table) -> list[str]:
    best = max(table, key=lambda name: table[name]["accuracy"]["mean"])
    lines = [f"- Most accurate at the horizon: {best}, {_percent(table[best])}."]
    ruled = [name for name in table if name.startswith("Async, C")]
    if ruled and "Async" in table:
        better = max(ruled, key=lambda name: table[name]["accuracy"]["mean"])
        gain = _difference(table[better], table["Async"])
        lines.append(f"- The staleness rate ({better}), tuned, against a tuned constant rate: {gain} points.")
    if {"AdaSync", "Async", "K-async", "Sync"} <= set(table):
        fixed = max(("Async", "K-async", "Sync"), key=lambda name: table[name]["accuracy"]["mean"])
        lines.append(f"- AdaSync against the best fixed K of 1, 4, 8 ({fixed}): {_difference(table['AdaSync'], table[fixed])} points.")  # fmt: skip
    return lines


_VERDICTS: Final[dict[int, Callable[[Table], list[str]]]] = {1: _adpsgd, 2: _swarm, 3: _ef21, 4: _servers}


def _share(one: dict[str, Any], other: dict[str, Any], name: str) -> float:
    return float(one[name]["mean"] / other[name]["mean"])


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    error = 100 * (one["accuracy"]["standard_error"] ** 2 + other["accuracy"]["standard_error"] ** 2) ** 0.5
    return f"{100 * (one['accuracy']['mean'] - other['accuracy']['mean']):+.2f} ± {error:.2f}"
