"""Where predicted and measured step times differ: seconds of a step by kind of event, in both traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tacit
from benchmarks.fidelity.cells import Method
from benchmarks.fidelity.timing import counted, window_of
from benchmarks.papers.common import table
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, WAIT, Event

PARTS = ("compute", "update", "hooks", "wire", "wait", "rest")
"""Of a worker's time. update: its optimizer; wire: exchanges that block; rest: in no event."""

Seconds = dict[str, float]
Milliseconds = dict[str, float]


def seconds_of(run: tacit.Run, method: Method) -> Seconds:
    """Return the seconds of a step by kind and label, the mean over ranks, and under "server" the server's own."""
    windows, found = window_of(run, method), defaultdict[str, float](float)
    for event, seconds in _blocking(run):
        begin_s, end_s = windows[max(event.rank, 0)]
        inside = sum(max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for since_s, until_s in seconds)
        if event.rank >= 0:
            found[_name(event)] += inside / run.workers
        else:
            found[f"server {_name(event)}"] += inside
    in_all = sum(end_s - begin_s for begin_s, end_s in windows.values()) / run.workers
    found["rest"] = in_all - sum(seconds for name, seconds in found.items() if not name.startswith("server"))
    steps = counted(run, method)
    return {name: seconds / steps for name, seconds in sorted(found.items())}


def _blocking(run: tacit.Run) -> Iterator[tuple[Event, list[tuple[float, float]]]]:
    """Yield the events with the times that they fill: exchanges without the time in which their rank did something."""
    done = defaultdict[int, list[tuple[float, float]]](list)
    for event in run.trace.of(COMPUTE, CANCELLED, HOOK, WAIT):
        done[event.rank].append((event.start_s, event.time_s))
        yield event, [(event.start_s, event.time_s)]
    for event in run.trace.of(EXCHANGE):
        free = [(event.start_s, event.time_s)]
        for start_s, end_s in done[event.rank]:
            if start_s < event.time_s and end_s > event.start_s:
                free = [part for one in free for part in ((one[0], min(one[1], start_s)), (max(one[0], end_s), one[1]))]
                free = [(since_s, until_s) for since_s, until_s in free if until_s > since_s]
        yield event, free


def _name(event: Event) -> str:
    if event.kind in (COMPUTE, CANCELLED):
        return "compute"
    if event.kind == HOOK:
        return "update" if event.label == "update" else f"hook {event.label}"
    return f"{'wire' if event.kind == EXCHANGE else 'wait'} {event.label.partition(' ')[0]}".strip()


def summed(seconds: Mapping[str, float]) -> Seconds:
    """Return the seconds by ``PARTS``."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, value in seconds.items():
        part = {"hook": "hooks"}.get(name.split()[0], name.split()[0])
        if part in found:
            found[part] += value
    return found


def parts_ms(runs: Sequence[tacit.Run], method: Method) -> Milliseconds:
    """Return the milliseconds of a step by kind and label, the mean over runs and ranks."""
    by_run = [seconds_of(run, method) for run in runs]
    names = sorted({name for seconds in by_run for name in seconds})
    return {name: 1e3 * sum(seconds.get(name, 0.0) for seconds in by_run) / len(runs) for name in names}


def causes_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the differences, predicted less measured, by place and method."""
    rows = []
    for place, methods in results.items():
        for method, found in methods.items():
            if causes := found.get("causes"):
                real, foreseen = summed(causes["measured"]), summed(causes["predicted"])
                parts = [f"{foreseen[part] - real[part]:+.2f} ({real[part]:.1f})" for part in PARTS]
                total = sum(foreseen.values()) - sum(real.values())
                rows.append((place, method, f"{total:+.2f} ({sum(real.values()):.1f})", *parts))
    return [
        "Predicted less measured, milliseconds of a step by kind of event, mean over ranks (measured in parentheses):",
        "",
        *table(("place", "method", "step", *PARTS), rows),
    ]
