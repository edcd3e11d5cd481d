"""What the records of a run with faults show: recovery times, missed steps, unequal models, how it ended."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from tacit.chaos.records import Life

_SHORTEST_PAUSE_S: Final = 0.08
_NOTICED_WITHIN_S: Final = 3.0
"""A pause that begins later than this after a fault has another cause."""


def analyse(
    lives: Sequence[Life], faults: Sequence[dict[str, Any]], workers: int, *, compares_rounds: bool
) -> dict[str, Any]:
    """Return the numbers of the report. compares_rounds: whether models are equal after every round."""
    done = {life.seat: event for life in lives if (event := life.event("done")) is not None}
    checksums = {row["model"] for row in done.values()}
    compared, unequal = unequal_rounds(lives) if compares_rounds else (None, [])
    return {
        "faults": [described(fault, lives, faults) for fault in faults],
        "finished_seats": sorted(done),
        "missing_seats": [seat for seat in range(workers) if seat not in done],
        "final_models": len(checksums),
        "loss": statistics.fmean(row["loss"] for row in done.values()) if done else None,
        "steps": max((row["updates"] for row in done.values()), default=None),
        "rounds_compared": compared,
        "unequal_rounds": unequal,
        "restarts": sum(life.life > 1 for life in lives),
        "repeated_steps": sum(repeated_steps(life) for life in lives),
        "errors": [
            {"seat": life.seat, "life": life.life, "kind": row["kind"], "text": row["text"], "notes": row["notes"]}
            for life in lives
            if (row := life.event("error")) is not None
        ],
        "wall_s": _last_s(lives) - _first_s(lives) if lives else 0.0,
    }


def unequal_rounds(lives: Sequence[Life]) -> tuple[int, list[int]]:
    """Return how many steps with rounds at least two workers have, and those after which their models differ."""
    models: dict[int, set[int]] = defaultdict(set)
    seats: dict[int, set[int]] = defaultdict(set)
    for life in lives:
        for row in life.steps:
            if "model" in row:
                models[row["step"]].add(row["model"])
                seats[row["step"]].add(life.seat)
    shared = [step for step, who in seats.items() if len(who) > 1]
    return len(shared), sorted(step for step in shared if len(models[step]) > 1)


def repeated_steps(life: Life) -> int:
    """Return how many steps of a life did not go beyond its farthest one: progress that it had lost."""
    farthest, count = -1, 0
    for row in life.steps:
        count += row["step"] <= farthest
        farthest = max(farthest, row["step"])
    return count


def described(fault: dict[str, Any], lives: Sequence[Life], faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a fault with its recovery: seconds until the others stepped again, and until its workers were back.

    Pauses that begin after the next fault are that one's, and those of a worker that another fault has hit are its own.
    """
    at_s, next_s = fault["at_s"], min((one["at_s"] for one in faults if one["at_s"] > fault["at_s"]), default=math.inf)
    hit = {seat for one in faults if one is fault or one["at_s"] <= at_s <= one["until_s"] for seat in one["seats"]}
    others = [life for life in lives if life.seat not in hit and _is_alive_at(life, at_s)]
    stalls = [stall for life in others if (stall := stall_after(life, at_s, next_s)) is not None]
    result = {
        **fault,
        "others_stalled": len(stalls),
        "recovery_s": max(stalls, default=0.0),
    }
    if fault["kind"] == "kill":
        returns = [back for seat in fault["seats"] if (back := _return_of(lives, seat, at_s)) is not None]
        result["returned"] = len(returns)
        result["return_s"] = max((back[0] for back in returns), default=None)
        result["missed_steps"] = max((back[1] for back in returns), default=None)
    return result


def stall_after(life: Life, at_s: float, before_s: float = math.inf) -> float | None:
    """Return the seconds from ``at_s`` to the end of the first long pause after it; None without one.

    before_s: pauses that begin later have another cause.
    """
    times_s = [row["time_s"] for row in life.steps]
    pauses = [b - a for a, b in itertools.pairwise(times_s)]
    if not pauses:
        return None
    limit_s = max(_SHORTEST_PAUSE_S, 4 * statistics.median(pauses))
    for begin_s, end_s in itertools.pairwise(times_s):
        if end_s > at_s and begin_s < min(before_s, at_s + _NOTICED_WITHIN_S) and end_s - begin_s > limit_s:
            return float(end_s - at_s)
    return None


def _return_of(lives: Sequence[Life], seat: int, at_s: float) -> tuple[float, int] | None:
    """Return the seconds from ``at_s`` to the first step of the seat's next life, and the steps that it missed."""
    own = [life for life in lives if life.seat == seat]
    before = [row["step"] for life in own for row in life.steps if row["time_s"] <= at_s]
    after = [life.steps[0] for life in own if life.steps and life.steps[0]["time_s"] > at_s]
    if not after:
        return None
    first = min(after, key=lambda row: row["time_s"])
    return first["time_s"] - at_s, max(0, first["step"] - max(before, default=0) - 1)


def _is_alive_at(life: Life, at_s: float) -> bool:
    steps = life.steps
    return bool(steps) and steps[0]["time_s"] <= at_s <= steps[-1]["time_s"]


def _first_s(lives: Sequence[Life]) -> float:
    return float(min(life.rows[0]["time_s"] for life in lives))


def _last_s(lives: Sequence[Life]) -> float:
    return float(max(life.rows[-1]["time_s"] for life in lives))
