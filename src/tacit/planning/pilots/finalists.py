"""What a plan does with pilots: ratios of the time to an equal loss, compared with DDP on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tacit.planning.pilots.job import PilotFailed, PilotJob
from tacit.planning.plan import PILOTED, Row
from tacit.planning.results import Interval
from tacit.record.smoothing import LEAST, smoothed

FINALISTS: Final = 3
MARGIN: Final = 1.5
"""Factor of the range of a pilot's ratio, on both sides: a short run tells little about a long one."""
_FEWEST_STEPS: Final = 5


@dataclass(frozen=True)
class Piloted:
    """The rows of a plan after the pilots, sentences for the user, and whether Ctrl-C ended the pilots."""

    rows: list[Row]
    remarks: list[str]
    is_interrupted: bool = False


def piloted(rows: Sequence[Row], baseline: Row, job: PilotJob) -> Piloted:
    """Run the baseline and the finalists for a short time, and correct the rows by what they show.

    A simulated row that agrees with its pilot stays as it is. One that does not gets the pilot's ratio with its wide
    range, and the letter B. A row of which only the pace is known gets the ratio alone.
    """
    finalists = finalists_of(rows, baseline)
    found, remarks = list(rows), list[str]()
    try:
        theirs = _curve(job, baseline, len(baseline.ranks))
    except PilotFailed as error:
        return Piloted(found, [f"The pilot of DDP failed, so there are no pilots: {error}."])
    except KeyboardInterrupt:
        return Piloted(found, [], is_interrupted=True)
    for row in finalists:
        try:
            ratio = ratio_of(_curve(job, row, len(baseline.ranks)), theirs)
        except PilotFailed as error:
            remarks.append(f"The pilot of {row.strategy} on {len(row.ranks)} workers failed: {error}.")
            continue
        except KeyboardInterrupt:
            return Piloted(found, remarks, is_interrupted=True)
        if ratio is None:
            remarks.append(f"The pilot of {row.strategy} was too short to compare its loss with that of DDP.")
            continue
        found[found.index(row)], remark = corrected(row, baseline, ratio)
        remarks.append(remark)
    return Piloted(found, remarks)


def finalists_of(rows: Sequence[Row], baseline: Row) -> list[Row]:
    """Return the best rows by time, or by pace where no time is known; servers and gossip are not piloted."""
    suited = [row for row in rows if row is not baseline and not row.strategy.depends_on_time]
    timed = [row for row in suited if row.time_s is not None]
    if timed or baseline.time_s is not None:
        return timed[:FINALISTS]
    everyone = [row for row in suited if row.ranks == baseline.ranks]
    faster = [row for row in everyone if row.pace.step_s < baseline.pace.step_s]
    return sorted(faster, key=lambda row: (row.pace.wire > 0.1, -row.pace.step_s))[:FINALISTS]


def ratio_of(ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]) -> float | None:
    """Return how many times as many steps we need as they do, to the lowest loss that both reached; None: too few."""
    if not ours or not theirs:
        return None
    common = max(min(loss for _, loss in ours), min(loss for _, loss in theirs))
    steps = [next(step for step, loss in curve if loss <= common) for curve in (ours, theirs)]
    return steps[0] / steps[1] if min(steps) >= _FEWEST_STEPS else None


def corrected(row: Row, baseline: Row, steps_ratio: float) -> tuple[Row, str]:
    """Return the row after its pilot, and a sentence about it."""
    ratio = steps_ratio * row.pace.step_s / baseline.pace.step_s
    relative = Interval(ratio, ratio / MARGIN, ratio * MARGIN, MARGIN)
    count = len(row.ranks)
    name = f"{row.strategy} on {count} worker{'s' * (count > 1)}"
    needs = f"In its pilot {name} needed {steps_ratio:.2f} times the steps of DDP for an equal loss"
    if row.time_s is None or baseline.time_s is None:
        return replace(row, relative=relative, fidelity=PILOTED), f"{needs}."
    simulated = row.time_s.median / baseline.time_s.median
    if relative.low <= simulated <= relative.high:
        return replace(row, relative=relative), f"{needs}, which agrees with the simulation."
    time_s = Interval(
        baseline.time_s.median * ratio,
        baseline.time_s.low * relative.low,
        baseline.time_s.high * relative.high,
        MARGIN,
    )
    changed = replace(row, relative=relative, fidelity=PILOTED, time_s=time_s, best_time_s=None, best_lr=None)
    return changed, f"{needs}; the simulation says {simulated * baseline.pace.step_s / row.pace.step_s:.2f}."


def _curve(job: PilotJob, row: Row, everyone: int) -> list[tuple[float, float]]:
    """Return the losses of a pilot by step; those of a script as running means."""
    rows = job.rows(str(row.strategy), len(row.ranks))
    if job.script is None:
        return [(float(step), loss) for step, _, loss in rows]
    return [(one.step, one.loss) for one in smoothed(rows, len(row.ranks), LEAST * everyone)]
