"""The choice among the rows of a plan, and its reason in a sentence.

Of the rows that are clearly better than DDP and were simulated with all seeds, that with the smallest mean is chosen.
Rows with one seed are not compared with those: of many of them, the one with the smallest time is often one whose seed
was a good one. Of three values, the mean errs less than the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tacit.planning.candidates import is_plain_period, without
from tacit.planning.pace import period_of
from tacit.planning.plan import GAIN, NO_TIME, STOPPED, Row
from tacit.profiles.profile import Profile

_BETTER: Final = {"time": "is faster", "bytes": "sends less", "cost": "costs less"}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a plan minimises: "time", "bytes", or "cost" of workers and traffic.

    "time" is the time to the target, or the loss in a plan with a time instead of a target.
    """

    name: str = "time"
    price_per_worker_hour: float = 0.0
    price_per_gigabyte: float = 0.0

    def value(self, row: Row) -> float:
        """Return the number to minimise; infinite for a row that does not reach the target."""
        return math.inf if row.outcome is None else self._at(row, row.outcome.centre)

    def _at(self, row: Row, outcome: float) -> float:
        if self.name == "time":
            return outcome
        sent = math.inf if row.bytes_to_target is None else row.bytes_to_target
        if self.name == "bytes":
            return sent
        hours = len(row.ranks) * outcome / 3600
        return hours * self.price_per_worker_hour + sent / 1e9 * self.price_per_gigabyte

    @property
    def prices(self) -> dict[str, float]:
        """The prices as arguments of the constructor."""
        return {
            "price_per_worker_hour": self.price_per_worker_hour,
            "price_per_gigabyte": self.price_per_gigabyte,
        }


def chosen(rows: Sequence[Row], baseline: Row, profile: Profile, objective: Objective, target: str) -> tuple[Row, str]:
    """Return the row to run and why; ``target``: what was asked for, as text."""
    reached = [row for row in rows if row.outcome is not None]
    if not reached:
        tried = [(trial.best_loss, row) for row in rows for trial in row.trials]
        known = [one for one in tried if math.isfinite(one[0])]
        if not tried:
            return _by_pace(rows, baseline)
        if not known:
            return baseline, f"No candidate reached {target}, and none had a loss. {_failure(rows) or ''}".strip()
        loss, row = min(known, key=lambda one: one[0])
        return baseline, (
            f"No candidate reached {target}. The best loss was {loss:.4g}, by {_named(row, profile)}. "
            f"Ask for a higher loss, or allow more steps."
        )
    if baseline.outcome is None:
        best = min(_with_all_seeds(reached), key=objective.value)
        ended = _failure([baseline])
        what = f"{ended} It is not compared." if ended else f"DDP on all workers did not reach {target}."
        return best, f"{what} {_because(best, baseline, profile)}"
    fastest = min(reached, key=objective.value)
    if fastest is baseline:
        better = "has a lower loss" if baseline.shortest_s is None else _BETTER[objective.name]
        simulated = "" if all(map(_is_settled, rows)) else " that was simulated within the budget"
        return baseline, f"Stay with DDP: no other candidate{simulated} {better}."
    clear = [row for row in reached if _is_clear(row, baseline, objective)]
    if not clear:
        return baseline, _unclear(fastest, baseline, profile, objective)
    best = min(_with_all_seeds(clear), key=objective.value)
    return best, f"{_because(best, baseline, profile)}{_less_certain(fastest, best, objective)}"


def _with_all_seeds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with as many seeds as any candidate has; the user's own has them before the others."""
    known = [(0 if row.outcome is None else row.outcome.seeds, row) for row in rows]
    most = max((count for count, row in known if not row.is_kept), default=0)
    return [row for count, row in known if count >= most]


def _is_settled(row: Row) -> bool:
    """Whether the budget allowed to see how good the candidate is, or whether it was left out for its pace."""
    return row.outcome is not None or not row.remark.startswith((NO_TIME, STOPPED))


def _gain(row: Row, baseline: Row, objective: Objective) -> float:
    """Return by which share a row is better than the baseline."""
    return 1 - objective.value(row) / objective.value(baseline) if objective.value(baseline) else 0.0


def _is_clear(row: Row, baseline: Row, objective: Objective) -> bool:
    """Whether a row is better by at least 10 %, with a range of times that ends before that of the baseline begins."""
    ours, theirs = row.outcome, baseline.outcome
    if row is baseline or ours is None or theirs is None or _gain(row, baseline, objective) < GAIN:
        return False
    return objective.name != "time" or not ours.overlaps(theirs)


def _unclear(fastest: Row, baseline: Row, profile: Profile, objective: Objective) -> str:
    """Return why the best of the other rows is not recommended."""
    gain, ours, theirs = _gain(fastest, baseline, objective), fastest.outcome, baseline.outcome
    assert ours is not None and theirs is not None
    is_loss = fastest.shortest_s is None
    if gain < GAIN:
        name = _named(fastest, profile)
        gained = f"{100 * max(0.0, gain):.0f} %"
        return (
            f"Stay with DDP: the loss of {name} is only {gained} lower."
            if is_loss
            else (f"Stay with DDP: {name} would gain {gained} only.")
        )
    takes, unit = ("end at a loss of", "") if is_loss else ("take", " s")
    return (
        f"Stay with DDP: {fastest.strategy} would {takes} {ours.low:.3g} to {ours.high:.3g}{unit} and DDP "
        f"{theirs.low:.3g} to {theirs.high:.3g}{unit}, which overlap."
    )


def _less_certain(fastest: Row, best: Row, objective: Objective) -> str:
    """Return in a sentence why the row with the smallest median is not the one to run; empty if it is."""
    theirs, ours = fastest.outcome, best.outcome
    if fastest is best or objective.name != "time" or theirs is None or ours is None:
        return ""
    name = f"{fastest.strategy} on {len(fastest.ranks)} worker{'s' * (len(fastest.ranks) > 1)}"
    found = f"{theirs.median:.3g}" + ("" if fastest.shortest_s is None else " s")
    seeds = f"{theirs.seeds} seed{'s' * (theirs.seeds > 1)}"
    if theirs.seeds == ours.seeds:
        return f" {name} is predicted to take {found}, but its range overlaps that of DDP."
    return f" {name} is predicted with {found}, but was simulated with {seeds} only."


def _named(row: Row, profile: Profile) -> str:
    """Return the strategy and the number of workers of a row."""
    return f"{row.strategy} on {len(row.ranks)} of {profile.workers} workers"


def _failure(rows: Sequence[Row]) -> str | None:
    """Return in a sentence how the first run of ``rows`` failed; None if none did."""
    for row in rows:
        for trial in row.trials:
            if trial.status.startswith("failed"):
                return f"The run with {row.strategy} {trial.status.splitlines()[0].rstrip('.')}."
    return None


def _by_pace(rows: Sequence[Row], baseline: Row) -> tuple[Row, str]:
    """Choose without losses: the smallest period with at most 10 % of the time for communication, waiting included.

    Where workers wait for slower ones for longer than that with every period, the limit is 10 points above the least
    share of all periods, and 10 % for rounds alone. Compressors, outer optimizers and overlap are not chosen: what
    they cost in steps is unknown without losses.
    """
    piloted = [row for row in rows if row.relative is not None]
    if piloted:
        return _by_pilot(piloted, baseline)
    now = baseline.pace.communication
    stay = f"Stay with DDP: communication and waiting take {100 * now:.0f} % of its time"
    if now <= GAIN:
        return baseline, f"{stay}."
    plain = [row for row in rows if row.ranks == baseline.ranks and is_plain_period(row.strategy)]
    periods = [row for row in plain if row.pace.step_s < baseline.pace.step_s]
    least = min((row.pace.communication for row in periods), default=math.inf)
    limit = GAIN if least <= GAIN else least + GAIN
    enough = [row for row in periods if row.pace.communication <= limit and row.pace.wire <= GAIN]
    if not enough:
        has = f"brings them to {100 * GAIN:.0f} %" if periods else "has a shorter step"
        return baseline, (
            f"{stay}, but losses were not simulated, and no period of LocalSGD among the candidates {has}."
            f"{_shorter_steps(rows, baseline)}"
        )
    if now <= limit:
        still = f"at least {100 * least:.0f} % with each period of LocalSGD: workers still wait"
        return baseline, f"{stay}, and {still}.{_shorter_steps(rows, baseline)}"
    best = min(enough, key=lambda row: period_of(row.strategy))
    falls = f"they fall from {100 * now:.0f} % of the time to {100 * best.pace.communication:.0f} %"
    which = (
        f"{best.strategy} has the smallest period with at most {100 * GAIN:.0f} % of the time for communication and "
        f"waiting: {falls}."
        if least <= GAIN
        else f"Communication and waiting take at least {100 * least:.0f} % of the time with each period of LocalSGD. "
        f"{best.strategy} has the smallest period within {100 * GAIN:.0f} points of it: {falls}."
    )
    return best, f"Losses were not simulated. {which}{_shorter_steps(rows, best)}"


def _shorter_steps(rows: Sequence[Row], best: Row) -> str:
    """Return in a sentence which rows have shorter steps than the recommended one; empty if none has."""
    shorter = sorted((row for row in rows if row.pace.step_s < best.pace.step_s), key=lambda row: row.pace.step_s)
    if not shorter:
        return ""
    count, first = len(shorter), shorter[0]
    name = f"{first.strategy} on {len(first.ranks)} worker{'s' * (len(first.ranks) > 1)}"
    who = f"{name} has a shorter step" if count == 1 else f"{count} candidates have shorter steps, first {name}"
    return f" {who}; how many steps they need is not known without losses."


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
        parts.append(f"Worker {best.ranks[0]} alone needs no network")
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
