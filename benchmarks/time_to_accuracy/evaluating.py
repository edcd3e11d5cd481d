"""What a run's notes say: the accuracy of its models, and when the target was reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.time_to_accuracy.ranks.models import build, load
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import accuracy, first, pictures

Noted = dict[str, Any]
"""What one rank noted; see ``ranks.common.Notes``."""


def evaluated(setting: Setting, ranks: Sequence[Noted], *, is_shared: bool, is_timed: bool) -> dict[str, Any]:
    """Return the curve of a run, when it reached the target, and what that cost until then.

    The target is reached at the first of two evaluations in a row that are at or above it. is_shared: all ranks count
    the bytes of one interface. is_timed: models were copied at times; steps are then the mean over ranks.
    """
    began_s, task = min(rank["began_s"] for rank in ranks), setting.task
    _, held_out = pictures(task.name, setting.data)
    judged, module = first(held_out, task.held_out), build(task.name)
    curve: list[tuple[int, float, float]] = []
    model = None
    for step, end_s, model in _models(ranks):
        load(module, model)
        curve.append((step, round(end_s - began_s, 4), accuracy(module, judged)))
    final = accuracy(module, held_out) if model is not None else None
    at = reached_at([found for _, _, found in curve], task.target)
    reached: Noted | None = None if at is None else {"step": curve[at][0], "time_s": curve[at][1]}
    if reached is not None:
        spent = _spent(ranks, began_s + reached["time_s"], is_shared)
        step = round(statistics.fmean(spent["rank_steps"])) if is_timed else reached["step"]
        reached = {**reached, **spent, "step": step}
    return {
        "reached": reached,
        "final": final,
        "best": max((found for _, _, found in curve), default=0.0),
        "pace_ms": 1e3 * _pace_s(ranks),
        "steps": [len(rank["ends_s"]) for rank in ranks],
        "spread": _disagreement(ranks),
        "curve": [[step, time_s, round(found, 4)] for step, time_s, found in curve],
    }


def reached_at(accuracies: Sequence[float], target: float) -> int | None:
    """Return the place of the first of two values in a row at or above the target."""
    enough = [value >= target for value in accuracies]
    return next((at for at in range(len(enough) - 1) if enough[at] and enough[at + 1]), None)


def _models(ranks: Sequence[Noted]) -> list[tuple[int, float, torch.Tensor]]:
    """Return the evaluated models with their steps and the times at which all ranks had taken them."""
    kept = ranks[0]["kept"]
    if kept is not None:  # of a server, on its own clock
        start_s = ranks[0]["began_s"] - ranks[0]["clock_s"]
        return [(updates, start_s + time_s, model) for updates, time_s, model in kept if time_s >= ranks[0]["clock_s"]]
    copies = [rank["models"] for rank in ranks if rank["models"]]
    marks = sorted(set.intersection(*(set(own) for own in copies))) if copies else []
    found = []
    for mark in marks:
        model = torch.stack([own[mark] for own in copies]).mean(dim=0) if len(copies) > 1 else copies[0][mark]
        found.append((mark, max(rank["marked_s"][mark] for rank in ranks), model))
    return found


def _spent(ranks: Sequence[Noted], at_s: float, is_shared: bool) -> dict[str, Any]:
    """Return bytes and processor seconds of all ranks until a time, and the steps of each of them."""
    places = [max(0, int(np.searchsorted(rank["ends_s"], at_s + 1e-9, side="right")) - 1) for rank in ranks]
    sent = [rank["sent_bytes"][place] for rank, place in zip(ranks, places, strict=True)]
    cpu_s = [rank["cpu_s"][place] for rank, place in zip(ranks, places, strict=True)]
    return {
        "bytes": max(sent) if is_shared else sum(sent),
        "cpu_s": round(sum(cpu_s), 2),
        "rank_steps": [place + 1 for place in places],
    }


def _pace_s(ranks: Sequence[Noted]) -> float:
    """Return the mean time of a step of the slowest rank, without its first three."""
    paces = []
    for rank in ranks:
        ends_s = rank["ends_s"]
        skipped = min(3, len(ends_s) - 1)
        paces.append((ends_s[-1] - ends_s[skipped]) / max(1, len(ends_s) - 1 - skipped))
    return float(max(paces))


def _disagreement(ranks: Sequence[Noted]) -> float:
    """Return the largest difference between the sums of the ranks' models at one mark, relative to the sum.

    It is about 0 for methods after whose rounds all ranks hold the same model.
    """
    sums = [rank["sums"] for rank in ranks]
    marks = set.intersection(*(set(own) for own in sums)) if all(sums) else set()
    spreads = [
        (max(own[mark] for own in sums) - min(own[mark] for own in sums)) / (1 + abs(sums[0][mark])) for mark in marks
    ]
    return round(statistics.fmean(spreads), 9) if spreads else 0.0
