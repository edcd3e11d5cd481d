"""Where predicted and measured step times differ: seconds of a step by kind of event, in both traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import tacit
from benchmarks.fidelity.cells import DDP, METHODS, Method, Place
from benchmarks.fidelity.predicting import SEEDS, counted, real_run, simulated, window_of
from benchmarks.fidelity.recording import Cell
from benchmarks.papers.common import table
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, WAIT

PARTS = ("compute", "update", "hooks", "wire", "wait", "rest")
"""Of a worker's time. update: its optimizer; wire: exchanges that block; rest: in no event."""

Seconds = dict[str, float]


def seconds_of(run: tacit.Run, method: Method) -> Seconds:
    """Return the seconds of a step by kind and label, the mean over ranks, and under "server" the server's own."""
    windows, found = window_of(run, method), defaultdict[str, float](float)
    for event in run.trace.of(COMPUTE, CANCELLED, EXCHANGE, HOOK, WAIT):
        name = _name(event.kind, event.label, is_overlapped=bool(event.value))
        begin_s, end_s = windows[max(event.rank, 0)]
        if name is None or event.time_s <= begin_s or event.start_s >= end_s:
            continue
        seconds = min(event.time_s, end_s) - max(event.start_s, begin_s)
        if event.rank >= 0:
            found[name] += seconds / run.workers
        else:
            found[f"server {name}"] += seconds
    in_all = sum(end_s - begin_s for begin_s, end_s in windows.values()) / run.workers
    found["rest"] = in_all - sum(seconds for name, seconds in found.items() if not name.startswith("server"))
    steps = counted(run, method)
    return {name: seconds / steps for name, seconds in sorted(found.items())}


def _name(kind: str, label: str, *, is_overlapped: bool) -> str | None:
    if kind == EXCHANGE:
        return None if is_overlapped else f"wire {label.split()[0] if label else ''}".strip()
    if kind == HOOK:
        return "update" if label == "update" else f"hook {label}"
    return "compute" if kind in (COMPUTE, CANCELLED) else f"wait {label}".strip()


def summed(seconds: Mapping[str, float]) -> Seconds:
    """Return the seconds by ``PARTS``."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, value in seconds.items():
        part = {"hook": "hooks"}.get(name.split()[0], name.split()[0])
        if part in found:
            found[part] += value
    return found


def causes_of(place: Place, name: str, cells: list[Cell], cluster: tacit.Cluster | None) -> dict[str, Seconds]:
    """Return the seconds of a step of one cell by kind, measured and predicted, in milliseconds; {} without a run."""
    cell = next(one for one in cells if one.method == name and one.turn is not None)
    if name == DDP or cluster is None or cell.about() is None:
        return {}
    runs = [simulated(place, name, cluster, seed) for seed in SEEDS]
    by_seed = [seconds_of(run, METHODS[name]) for run in runs]
    names = sorted({key for seconds in by_seed for key in seconds})
    predicted = {key: sum(seconds.get(key, 0.0) for seconds in by_seed) / len(by_seed) for key in names}
    measured = seconds_of(real_run(cell), METHODS[name])
    return {"measured": _in_ms(measured), "predicted": _in_ms(predicted)}


def _in_ms(seconds: Mapping[str, float]) -> Seconds:
    return {name: 1e3 * value for name, value in seconds.items()}


def causes_table(found: Mapping[str, Mapping[str, Mapping[str, Seconds]]]) -> list[str]:
    """Return the differences, predicted less measured, by place and method."""
    rows = []
    for place, methods in found.items():
        for method, causes in methods.items():
            if causes:
                real, foreseen = summed(causes["measured"]), summed(causes["predicted"])
                parts = [f"{foreseen[part] - real[part]:+.2f} ({real[part]:.1f})" for part in PARTS]
                total = sum(foreseen.values()) - sum(real.values())
                rows.append((place, method, f"{total:+.2f} ({sum(real.values()):.1f})", *parts))
    return [
        "Predicted less measured, milliseconds of a step by kind of event, mean over ranks (measured in parentheses):",
        "",
        *table(("place", "method", "step", *PARTS), rows),
    ]
