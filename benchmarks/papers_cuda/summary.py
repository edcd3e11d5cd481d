"""The tables and verdicts of the papers' benchmark on a GPU, from the rows of its runs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

import tacit
from benchmarks.papers.common import spread_of
from benchmarks.papers_cuda.trainings import METHODS, WORKERS, best_of, mean_period

NETWORKS: Final = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10}
MODELS: Final = {"GoogLeNet": (6.2e6, 0.15), "VGG16": (15e6, 0.09), "ResNet50": (25.6e6, 0.16)}
"""Parameters and seconds of a step. The paper's times are not known: these are guesses for GPUs of its years."""
CLAIMS: Final = {"10 Gbit/s": (1.46, 1.95), "100 Gbit/s": (1.14, 1.27)}


def step_s(model: str, network: str, period: float) -> float:
    """Return the mean time of a step with a ring all-reduce every ``period`` steps, at the full rate of the network."""
    parameters, compute_s = MODELS[model]
    ring_s = 2 * (WORKERS - 1) / WORKERS * 4 * parameters / NETWORKS[network]
    return compute_s + ring_s / period


def write_summary(rows: Sequence[dict[str, Any]], path: Path, tuning_seed: int) -> None:
    """Write the JSON with all rows, and the Markdown with tables beside it."""
    splits = list(dict.fromkeys(row["split"] for row in rows))
    tables = {split: _table([row for row in rows if row["split"] == split], tuning_seed) for split in splits}
    found = {
        "title": "ADPSGD's table: ResNet-20 on CIFAR-10",
        "command": "python -m benchmarks.papers_cuda",
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "tables": tables,
        "speed_ups": {split: _speed_ups(table) for split, table in tables.items()},
        "rows": list(rows),
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(_markdown(found)) + "\n")


def _table(rows: Sequence[dict[str, Any]], tuning_seed: int) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        tuning = [row for row in own if row["seed"] == tuning_seed]
        best = best_of(tuning)
        if best is None:
            continue
        final = [row for row in own if row["seed"] != tuning_seed and row["lr"] == best["lr"] and row["accuracy"]]
        measured = final or [best]
        table[method] = {
            "lr": best["lr"],
            "rates": sorted(row["lr"] for row in tuning),
            "seeds": [row["seed"] for row in final],
            "accuracy": spread_of(row["accuracy"] for row in measured),
            "loss": spread_of(row["loss"] for row in measured),
            "rounds": spread_of(row["rounds"] for row in measured),
            "bytes_sent": spread_of(row["bytes_sent"] for row in measured),
            "period": spread_of(mean_period(row) for row in measured),
        }
    return table


def _speed_ups(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the speed of ADPSGD's mean period over full communication, by network and model."""
    if "ADPSGD" not in table:
        return {}
    period = table["ADPSGD"]["period"]["mean"]
    return {
        network: {model: step_s(model, network, 1) / step_s(model, network, period) for model in MODELS}
        for network in NETWORKS
    }


def _markdown(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    lines = [f"# {found['title']}", "", f"`{found['command']}`; summary with {versions}", ""]
    lines += [
        f"{WORKERS} simulated workers, batch 32, momentum 0.9, rate cut at 50 and 75 % of 40 epochs of 20,000 pictures,",
        "crops and flips, 10,000 test pictures. Learning rates were searched on a seed of its own; accuracy is the mean",
        "over the other seeds with its standard error.",
    ]
    for split, table in found["tables"].items():
        lines += ["", f"## {split}", "", "| method | lr (of) | seeds | test accuracy | loss | rounds | sent |"]
        lines.append("|---|---|---|---|---|---|---|")
        for method, row in table.items():
            accuracy = row["accuracy"]
            lines.append(
                f"| {method} | {row['lr']:g} ({', '.join(f'{lr:g}' for lr in row['rates'])}) | {len(row['seeds'])} | "
                f"{100 * accuracy['mean']:.2f} ± {100 * accuracy['standard_error']:.2f} % | {row['loss']['mean']:.3f} | "
                f"{row['rounds']['mean']:.0f} | {row['bytes_sent']['mean'] / 1e9:.2f} GB |"
            )
        lines += ["", *_verdicts(table, found["speed_ups"].get(split, {}))]
    return lines


def _verdicts(table: dict[str, dict[str, Any]], speed_ups: dict[str, dict[str, float]]) -> list[str]:
    """Return the paper's claims with what was measured."""
    lines = []
    if {"ADPSGD", "QSGD, 8 bit", "CPSGD"} <= set(table):
        ours, theirs, constant = (table[name] for name in ("ADPSGD", "QSGD, 8 bit", "CPSGD"))
        share = ours["bytes_sent"]["mean"] / theirs["bytes_sent"]["mean"]
        lines.append(
            f"- Half of QSGD's communication at equal accuracy: {share:.2f} of the bytes, accuracy "
            f"{_difference(ours, theirs)} points against QSGD with 8 bit."
        )
        lines.append(
            f"- Higher accuracy than a constant period with less communication: {_difference(ours, constant)} points "
            f"against CPSGD, with {ours['rounds']['mean'] / constant['rounds']['mean']:.2f} of its rounds."
        )
    for network, by_model in speed_ups.items():
        low, high = CLAIMS[network]
        numbers = ", ".join(f"{model} {value:.2f}" for model, value in by_model.items())
        lines.append(
            f"- Speed-up at {network}, stated {low} to {high}: {numbers} (ring at full rate, guessed step times)."
        )
    return lines


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    error = 100 * (one["accuracy"]["standard_error"] ** 2 + other["accuracy"]["standard_error"] ** 2) ** 0.5
    return f"{100 * (one['accuracy']['mean'] - other['accuracy']['mean']):+.2f} ± {error:.2f}"
