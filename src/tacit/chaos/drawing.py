"""Draw a plan of faults from a seed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from tacit.chaos.plan import RETURN_S, ChaosFault, ChaosPlan
from tacit.errors import require

_SHARES: Final = {"kill": 0.45, "kill two": 0.15, "stop": 0.2, "slow": 0.1, "fill": 0.05, "cut": 0.05}
_FIRST_S: Final = 3.0
_QUIET_END_S: Final = 12.0
"""Seconds without faults at the end, so that all workers are back when the run ends."""
_STOPS_S: Final = (0.5, 6.0)


def draw_plan(
    seed: int,
    *,
    workers: int,
    for_s: float,
    interval_s: float = 5.0,
    kinds: Collection[str] = ("kill", "stop", "slow"),
    spared: Collection[int] = (),
    min_workers: int | None = None,
) -> ChaosPlan:
    """Return a plan with a fault every ``interval_s`` seconds on average.

    spared: workers that are never killed, such as the one with the server. A fault hits only workers that are there.
    min_workers: so many are always there; default: two, or one of two.
    """
    require(interval_s > 0, f"interval_s={interval_s} must be positive.")
    least_s = _FIRST_S + _QUIET_END_S
    require(for_s > least_s, f"for_s={for_s:g} is too short to draw faults for; choose more than {least_s:g} seconds.")
    least = min(2, workers - 1) if min_workers is None else min_workers
    random, faults, busy_until_s = np.random.default_rng(seed), list[ChaosFault](), [0.0] * workers
    disk_until_s, at_s = 0.0, _FIRST_S + float(random.exponential(interval_s))
    names = [name for name in _SHARES if name.split()[0] in kinds]
    shares = np.array([_SHARES[name] for name in names])
    while at_s < for_s - _QUIET_END_S:
        name = names[int(random.choice(len(names), p=shares / shares.sum()))]
        free = [seat for seat in range(workers) if busy_until_s[seat] <= at_s]
        if name.startswith("kill"):
            free = [seat for seat in free if seat not in spared]
        away = sum(until_s > at_s for until_s in busy_until_s)
        count = min(1 + name.endswith("two"), len(free), workers - least - away)
        length_s = round(float(random.uniform(*_STOPS_S)), 2)
        fault: ChaosFault | None = None
        if name == "fill" and at_s >= disk_until_s:
            fault = ChaosFault(kind="fill", at_s=round(at_s, 2), for_s=length_s)
            disk_until_s = fault.until_s + RETURN_S
        elif name != "fill" and count > 0:
            seats = tuple(int(seat) for seat in random.choice(free, count, replace=False))
            kind = name.split()[0]
            fault = ChaosFault(
                kind=kind,
                seats=seats,
                at_s=round(at_s, 2),
                for_s=None if kind == "kill" else length_s,
                factor=4.0 if kind == "slow" else None,
            )
            for seat in seats:
                busy_until_s[seat] = fault.until_s
        if fault is not None:
            faults.append(fault)
        at_s += 0.3 * interval_s + float(random.exponential(0.7 * interval_s))
    return ChaosPlan(workers=workers, for_s=for_s, faults=tuple(faults), min_workers=min(least, workers), seed=seed)
