"""Tables and verdicts, from the rows of the real runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.papers.common import table, target
from benchmarks.time_to_accuracy.methods import ALL_REDUCE, DDP, LOCAL_PEERS, METHODS, PLAN, POWERSGD
from benchmarks.time_to_accuracy.places import TITLES
from benchmarks.time_to_accuracy.search import Choice
from benchmarks.time_to_accuracy.setting import Setting

Found = dict[str, Any]


def summary_of(setting: Setting, choices: Sequence[Choice]) -> list[Found]:
    """Return one cell for each method and place, with the medians of its seeds."""
    cells = []
    for choice in choices:
        rows = [
            row
            for seed in setting.seeds
            if (row := setting.rows.find(**choice.key, seed=seed)) is not None and "pace_ms" in row
        ]
        failed = [row["failed"] for row in setting.rows if row.get("failed") and choice.key.items() <= row.items()]
        cells.append(_cell(choice, rows, failed))
    return cells


def _cell(choice: Choice, rows: list[Found], failed: list[str]) -> Found:
    reached = [row["reached"] for row in rows if row["reached"] is not None]
    is_whole = bool(rows) and len(reached) == len(rows)
    cell: Found = {
        "place": choice.spot.key,
        "method": choice.method,
        "is_ours": choice.is_ours,
        "lr": choice.lr,
        "value": choice.value,
        "strategy": str(choice.strategy),
        "workers": choice.workers,
        "predicted_steps": choice.steps,
        "predicted_s": choice.time_s,
        "seeds": len(rows),
        "reached": len(reached),
    }
    if not rows:
        return cell | ({"failed": failed[-1]} if failed else {})
    cell |= {
        "final": statistics.median(row["final"] for row in rows),
        "pace_ms": [round(row["pace_ms"], 2) for row in rows],
        "load": max(row["load"] for row in rows),
        "trained_s": [row["trained_s"] for row in rows],
        "steps_by_seed": [row["reached"]["step"] if row["reached"] else None for row in rows],
        "time_s_by_seed": [row["reached"]["time_s"] if row["reached"] else None for row in rows],
    }
    if is_whole:
        cell |= {name: statistics.median(one[name] for one in reached) for name in ("time_s", "step", "bytes", "cpu_s")}
    return cell


def table_of(cells: Iterable[Found]) -> list[str]:
    """Return the cells of all places as one table, the fastest first."""
    header = (
        "place", "method", "rate", "parameter", "seeds", "time (s)", "steps", "MB sent", "processor (s)",
        "final accuracy", "step (ms)", "predicted",
    )  # fmt: skip
    lines = []
    for place in TITLES:
        own = [cell for cell in cells if cell["place"] == place]
        for cell in sorted(own, key=lambda cell: cell.get("time_s", 1e9)):
            lines.append(_line(cell))
    return table(header, lines)


def _line(cell: Found) -> tuple[object, ...]:
    method = METHODS.get(cell["method"])
    value = "" if cell["value"] is None or method is None else f"{method.parameter} {cell['value']:g}"
    if cell["method"] == PLAN:
        value = f"`{cell['strategy']}` on {cell['workers']}"
    head = (TITLES[cell["place"]], cell["method"], f"{cell['lr']:g}", value, cell["seeds"])
    predicted = (
        "not reached" if cell["predicted_s"] is None else f"{cell['predicted_s']:.1f} s, {cell['predicted_steps']}"
    )
    if not cell["seeds"]:
        return (*head, "failed" if "failed" in cell else "not run", "", "", "", "", "", predicted)
    pace = f"{statistics.median(cell['pace_ms']):.1f}"
    if "time_s" not in cell:
        said = f"reached by {cell['reached']} in {max(cell['trained_s']):.0f} s"
        return (*head, said, "", "", "", f"{cell['final']:.2%}", pace, predicted)
    return (
        *head,
        f"{cell['time_s']:.2f}",
        f"{cell['step']:.0f}",
        f"{cell['bytes'] / 1e6:.1f}",
        f"{cell['cpu_s']:.1f}",
        f"{cell['final']:.2%}",
        pace,
        predicted,
    )


def claims_of(cells: Sequence[Found], failures: dict[str, str]) -> list[Found]:
    """Return the goals with their verdicts."""
    by_place = {place: [cell for cell in cells if cell["place"] == place] for place in TITLES}
    claims = []
    if by_place["100mbit"]:
        ours, peers = _best(by_place["100mbit"], ours=True), {cell["method"]: cell for cell in by_place["100mbit"]}
        for name, others, limit in (
            ("DDP's", [DDP], 0.06),
            ("PowerSGD's", [POWERSGD], 0.4),
            ("the best LocalSGD or DiLoCo peer's", LOCAL_PEERS, 0.75),
        ):
            other = _fastest(peers[one] for one in others if one in peers)
            claims.append(
                _ratio(f"100 Mbit/s, {name}", f"best of ours: at most {limit} of {name} time", ours, other, limit)
            )
    for place, limit in (("1gbit", 0.8), ("slow", 0.6)):
        if by_place[place]:
            ours, other = (_best(by_place[place], ours=is_ours) for is_ours in (True, False))
            stated = f"best of ours: at most {limit} of the best peer's time"
            claims.append(_ratio(TITLES[place], stated, ours, other, limit))
    own = {cell["method"]: cell for cell in by_place["loopback"]}
    if own:
        ours, other = (_fastest([own[name]] if name in own else []) for name in (ALL_REDUCE, DDP))
        claims.append(_ratio("loopback", "AllReduce: at most 1.05 of DDP's time", ours, other, 1.05))
    claims += [_plan_claim(place, own) for place, own in by_place.items() if any(one["method"] == PLAN for one in own)]
    claims += _equivalents(cells)
    missed = [f"{cell['method']} ({cell['place']})" for cell in cells if cell["seeds"] and "time_s" not in cell]
    claims.append(target("reached", "all methods reach the target", "; ".join(missed) or "all that ran", not missed))
    missing = [f"{cell['method']} ({cell['place']})" for cell in cells if not cell["seeds"]]
    if missing:
        claims.append(target("cells", "all cells have runs", f"missing: {'; '.join(missing)}", False))
    return [
        *claims,
        *(target("runs", "everything runs to its end", f"{run}: {why}", False) for run, why in failures.items()),
    ]


def _fastest(cells: Iterable[Found]) -> Found | None:
    return min((cell for cell in cells if "time_s" in cell), key=lambda cell: cell["time_s"], default=None)


def _best(cells: Iterable[Found], *, ours: bool) -> Found | None:
    return _fastest(cell for cell in cells if cell["is_ours"] == ours)


def _ratio(number: str, stated: str, one: Found | None, other: Found | None, limit: float) -> Found:
    if one is None or other is None:
        return target(number, stated, "not measured", False)
    ratio = one["time_s"] / other["time_s"]
    said = f"{ratio:.3f}: {one['method']} {one['time_s']:.2f} s, {other['method']} {other['time_s']:.2f} s"
    return target(number, stated, said, ratio <= limit)


def _plan_claim(place: str, cells: Sequence[Found]) -> Found:
    plan, best = (_fastest(cells_of) for cells_of in ([c for c in cells if c["method"] == PLAN], cells))
    stated = "what tacit plan recommends, of the fastest of all methods"
    if plan is None or best is None:
        return target(f"plan, {TITLES[place]}", stated, "not measured", None)
    said = f"{plan['time_s'] / best['time_s']:.3f}: {plan['strategy']}; fastest: {best['method']}"
    return target(f"plan, {TITLES[place]}", stated, said, None)


def _equivalents(cells: Sequence[Found]) -> list[Found]:
    """Return a claim for each pair of a peer and the strategy it was tuned as, where both ran with the same choice."""
    claims = []
    for one, other in ((DDP, ALL_REDUCE), *((peer, "tacit LocalSGD") for peer in LOCAL_PEERS[:3])):
        steps = []
        for cell in cells:
            for twin in cells:
                is_pair = (cell["method"], twin["method"]) == (one, other)
                if is_pair and all(cell[name] == twin[name] for name in ("place", "lr", "value")):
                    steps += list(zip(cell.get("steps_by_seed", []), twin.get("steps_by_seed", []), strict=False))
        if steps:
            equal = sum(a == b for a, b in steps)
            said = f"{equal} of {len(steps)} runs: {', '.join(f'{a}/{b}' for a, b in steps)}"
            claims.append(target(f"{one} = {other}", "equal steps to the target on the wire", said, None))
    return claims
