"""The choice among the rows of a plan, and its reason in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.planning.candidates import without
from tacit.planning.plan import GAIN, Row
from tacit.profiles.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a plan minimises: "time", "bytes", or "cost" of workers and traffic."""

    name: str = "time"
    price_per_worker_hour: float = 0.0
    price_per_gigabyte: float = 0.0

    def value(self, row: Row) -> float:
        """Return the number to minimise; infinite for a row that does not reach the target."""
        time_s = row.shortest_s
        if time_s is None:
            return math.inf
        if self.name == "time":
            return time_s.median
        sent = math.inf if row.bytes_to_target is None else row.bytes_to_target
        if self.name == "bytes":
            return sent
        hours = len(row.ranks) * time_s.median / 3600
        return hours * self.price_per_worker_hour + sent / 1e9 * self.price_per_gigabyte


def chosen(rows: Sequence[Row], baseline: Row, profile: Profile, objective: Objective, target: str) -> tuple[Row, str]:
    """Return the row to run and why; ``target``: what was asked for, as text."""
    reached = [row for row in rows if row.shortest_s is not None]
    if not reached:
        tried = [(trial.best_loss, row) for row in rows for trial in row.trials]
        known = [one for one in tried if math.isfinite(one[0])]
        if not tried:
            return _by_pace(rows, baseline)
        if not known:
            return baseline, f"No candidate reached {target}, and none had a loss. {_failure(rows) or ''}".strip()
        loss, row = min(known, key=lambda one: one[0])
        return baseline, (
            f"No candidate reached {target}. The best loss was {loss:.4g}, by {row.strategy}. "
            f"Ask for a higher loss, or allow more steps."
        )
    best = min(reached, key=objective.value)
    if best is baseline:
        return baseline, "Stay with DDP: no other candidate is faster."
    ours, theirs = best.shortest_s, baseline.shortest_s
    assert ours is not None
    if theirs is None:
        ended = _failure([baseline])
        what = f"{ended} It is not compared." if ended else f"DDP on all workers did not reach {target}."
        return best, f"{what} {_because(best, baseline, profile)}"
    gain = 1 - objective.value(best) / objective.value(baseline) if objective.value(baseline) else 0.0
    if gain < GAIN:
        name = f"{best.strategy} on {len(best.ranks)} of {profile.workers} workers"
        return baseline, f"Stay with DDP: {name} would gain {100 * max(0.0, gain):.0f} % only."
    if objective.name == "time" and ours.overlaps(theirs):
        return baseline, (
            f"Stay with DDP: {best.strategy} would take {ours.low:.3g} to {ours.high:.3g} s and DDP "
            f"{theirs.low:.3g} to {theirs.high:.3g} s, which overlap."
        )
    return best, _because(best, baseline, profile)


def _failure(rows: Sequence[Row]) -> str | None:
    """Return in a sentence how the first run of ``rows`` failed; None if none did."""
    for row in rows:
        for trial in row.trials:
            if trial.status.startswith("failed"):
                return f"The run with {row.strategy} {trial.status.splitlines()[0].rstrip('.')}."
    return None


def _by_pace(rows: Sequence[Row], baseline: Row) -> tuple[Row, str]:
    """Choose without losses: the smallest change whose rounds take at most 10 % of the time."""
    piloted = [row for row in rows if row.relative is not None]
    if piloted:
        return _by_pilot(piloted, baseline)
    alike = [row for row in rows if row.ranks == baseline.ranks and not row.strategy.depends_on_time]
    faster = [row for row in alike if row is baseline or row.pace.step_s < baseline.pace.step_s]
    enough = [row for row in faster if row.pace.wire <= GAIN]
    if baseline in enough or not enough:
        return baseline, (
            f"Stay with DDP: its rounds take {100 * baseline.pace.wire:.0f} % of the time."
            if baseline in enough
            else "Stay with DDP: no candidate brings rounds below 10 % of the time."
        )
    best = max(enough, key=lambda row: row.pace.step_s)  # the longest step that is short enough: the smallest period
    return best, (
        f"Losses were not simulated. {best.strategy} is the smallest change that brings the rounds from "
        f"{100 * baseline.pace.wire:.0f} % to {100 * best.pace.wire:.0f} % of the time; no strategy "
        f"can gain more than that by sending less."
    )


def _by_pilot(piloted: Sequence[Row], baseline: Row) -> tuple[Row, str]:
    """Choose without simulated losses, by the ratios of pilots."""
    known = [(row.relative, row) for row in piloted if row.relative is not None]
    ratio, best = min(known, key=lambda one: one[0].median)
    found = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) of the time of DDP to an equal loss"
    if ratio.high >= 1:
        return baseline, f"Stay with DDP: {best.strategy} would take {found}, by its pilot."
    return best, f"Losses were not simulated. By its pilot {best.strategy} takes {found}."


def _because(best: Row, baseline: Row, profile: Profile) -> str:
    """Return the reason for the best row: who is left out, and what happens to communication."""
    parts = []
    left_out = without(profile, best.ranks)
    if left_out and len(best.ranks) == 1:
        parts.append(f"Worker {best.ranks[0]} alone is fastest")
    elif left_out:
        slow, fast = (max(map(profile.mean_step_s, ranks)) for ranks in (left_out, best.ranks))
        parts.append(
            f"Without worker{'s' * (len(left_out) > 1)} {', '.join(map(str, left_out))}, whose steps take "
            f"{slow / fast:.1f} times as long, the others need not wait"
        )
    before, after = (100 * row.pace.communication for row in (baseline, best))
    parts.append(
        f"communication and waiting fall from {before:.0f} % of the time to {after:.0f} %"
        if after < before
        else f"a step takes {1e3 * best.pace.step_s:.3g} ms instead of {1e3 * baseline.pace.step_s:.3g}"
    )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
