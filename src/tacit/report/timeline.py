"""Activities of workers: shares over a whole run, and a strip of the first rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tacit.record.run import Run, waits_of_the_finished
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, FAULT, HOOK, RECEIVE, SEND, WAIT

FINISHED: Final = "finished"
"""Wait for the slowest worker after the last step, at the end of a run without rounds."""

# Of simultaneous activities the first in this order counts: communication during computation costs no time.
ACTIVITIES: Final = {
    "computing": (COMPUTE,),
    "cancelled": (CANCELLED,),
    "waiting": (WAIT,),
    "finished": (FINISHED,),
    "talking": (EXCHANGE, SEND, RECEIVE),
    "hooks": (HOOK,),
}


@dataclass(frozen=True)
class Bar:
    """One interval of one rank's time, within the window that is drawn."""

    rank: int
    activity: str
    start_s: float
    end_s: float
    step: int
    label: str


@dataclass(frozen=True)
class Strip:
    """The first ``until_s`` seconds of some ranks of a run; ``faults`` are bars of no length."""

    ranks: tuple[int, ...]
    bars: tuple[Bar, ...]
    faults: tuple[Bar, ...]
    until_s: float


def shares(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Return each activity's share of the workers' time, and «other»: not started, ended, crashed. They sum to 1."""
    columns = _with_finished(columns)
    ours = columns["rank"] >= 0
    end_s = float(columns["time_s"].max(initial=0.0))
    learners = len(np.unique(columns["rank"][ours]))
    if not learners or end_s <= 0:
        return dict.fromkeys((*ACTIVITIES, "other"), 0.0)
    found, kinds, covered = {}, list[str](), 0.0
    for activity, its_kinds in ACTIVITIES.items():
        kinds.extend(its_kinds)
        total = _covered_s(columns, ours & np.isin(columns["kind"], kinds))
        found[activity] = (total - covered) / (learners * end_s)
        covered = total
    return {**found, "other": max(0.0, 1.0 - covered / (learners * end_s))}


def window_s(traces: Sequence[dict[str, np.ndarray]]) -> float:
    """Return the length of the window: two rounds of the run with the longest period, but 8 to 60 typical steps."""
    steps = [np.median(_lengths(c)[c["kind"] == COMPUTE]) for c in traces if (c["kind"] == COMPUTE).any()]
    ends = [float(c["time_s"].max(initial=0.0)) for c in traces]
    if not steps:
        return max(ends, default=0.0)
    rounds = [float(c["time_s"][c["round"] == 2].max()) for c in traces if (c["round"] == 2).any()]
    step_s = float(np.median(steps))
    return min(max(ends), float(np.clip(1.02 * max(rounds, default=0.0), 8 * step_s, 60 * step_s)))


def strip(columns: dict[str, np.ndarray], until_s: float, most_workers: int) -> Strip:
    """Return the bars of the first ``most_workers`` workers, and of the server if there is one, up to ``until_s``."""
    columns = _with_finished(columns)
    known = np.unique(columns["rank"])
    ranks = tuple(int(r) for r in known[known < 0]) + tuple(int(r) for r in known[known >= 0][:most_workers])
    shown = np.isin(columns["rank"], ranks) & (columns["start_s"] < until_s)
    activity_of = {kind: activity for activity, kinds in ACTIVITIES.items() for kind in kinds}
    bars, faults = [], []
    for i in np.flatnonzero(shown & (np.isin(columns["kind"], list(activity_of)) & (_lengths(columns) > 0))):
        bars.append(_bar(columns, int(i), activity_of[str(columns["kind"][i])], until_s))
    for i in np.flatnonzero(shown & (columns["kind"] == FAULT)):
        faults.append(_bar(columns, int(i), "fault", until_s))
    return Strip(ranks, tuple(bars), tuple(faults), until_s)


def first_run(runs: Sequence[Run]) -> Run:
    """Return the run of the lowest seed: the one that is drawn."""
    return min(runs, key=lambda run: run.seed)


def _with_finished(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns with waits of finished workers as a separate kind."""
    chosen = waits_of_the_finished(columns)
    return {**columns, "kind": np.where(chosen, FINISHED, columns["kind"])} if chosen.any() else columns


def _bar(columns: dict[str, np.ndarray], i: int, activity: str, until_s: float) -> Bar:
    start_s, end_s = float(columns["start_s"][i]), min(float(columns["time_s"][i]), until_s)
    label = str(columns["label"][i])
    return Bar(int(columns["rank"][i]), activity, start_s, end_s, int(columns["step"][i]), label)


def _lengths(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(columns["time_s"] - columns["start_s"])


def _covered_s(columns: dict[str, np.ndarray], chosen: np.ndarray) -> float:
    """Return the time that the chosen events cover, overlaps counted once, summed over ranks."""
    if not chosen.any():
        return 0.0
    start, end = columns["start_s"][chosen], columns["time_s"][chosen]
    rank = columns["rank"][chosen].astype(float)
    offset = rank * (float(end.max()) - float(start.min()) + 1.0)  # ranks one after another on a single axis
    start, end = start + offset, end + offset
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(0.0, end - np.maximum(start, reached)).sum())
