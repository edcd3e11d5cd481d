"""The report's first sentences, written from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from tacit.record.run import Run
from tacit.report import units
from tacit.report.comparison import Comparison, TableRow
from tacit.report.prediction import Prediction

SAME = 1.05  # ratios nearer to 1 than this are called equal
_SHOWN = 3  # predictions or failures that a sentence names


def verdict(comparison: Comparison) -> str:
    """Return a sentence or two: the best strategy, by how much, and at which cost; for a single run, how it ended."""
    rows, target = comparison.rows, comparison.target
    if len(rows) == 1:
        return _alone(rows[0], comparison.workload)
    if comparison.predictions:
        return f"{'; '.join(map(str, comparison.predictions[:_SHOWN]))}."
    if all(_has_failed(row) for row in rows):
        return f"All strategies failed: {'; '.join(_failure(row) for row in rows[:_SHOWN])}."
    if target is None:
        if any(row.loss.values != (None,) * len(row.loss.values) for row in rows):
            return "No strategy brought the loss below where it started; try a smaller learning rate."
        return (
            "No run measured a loss, so only times and bytes are compared; "
            "a script reports its loss with session.observe(loss) in every step, or with session.log(loss=…)."
        )
    loss = f"loss {units.target(target)}"
    arrived = [row for row in rows if row.time_to_target_s.mean is not None and not _has_failed(row)]
    if not arrived:
        return f"No strategy reached {loss} with every seed."
    baseline = next((row for row in rows if row.label == comparison.baseline), None)
    rivals = [row for row in arrived if row is not baseline and row.speed_up.mean is not None]
    if baseline in arrived and baseline is not None:
        if not rivals:
            return f"Only {baseline.label} reached {loss}, after {_time(baseline)}."
        return _against(baseline, max(rivals, key=lambda row: row.speed_up.mean or 0.0), loss)
    first = min(arrived, key=lambda row: row.time_to_target_s.mean or 0.0)
    behind = f"; {baseline.label} did not reach it with every seed" if baseline else ""
    return f"{first.label} reached {loss} first, after {_time(first)} and {_bytes(first)} sent{behind}."


def _against(baseline: TableRow, winner: TableRow, loss: str) -> str:
    faster, saving = winner.speed_up.mean, winner.bytes_saving.mean
    assert faster is not None
    if faster >= SAME:
        text = f"{winner.label} was {units.ratio(faster)} as fast as {baseline.label} to {loss}"
    elif faster > 1 / SAME:
        text = f"{winner.label} reached {loss} about as soon as {baseline.label}"
    else:
        text = (
            f"No strategy beat {baseline.label} to {loss}; {winner.label} came closest, {units.ratio(1 / faster)} later"
        )
    if saving is None or 1 / SAME < saving < SAME:
        return f"{text}."
    less = saving >= SAME
    joint = "and" if less or faster < 1 / SAME else "but"
    amount = f"{units.ratio(saving)} fewer" if less else f"{units.ratio(1 / saving)} as many"
    return f"{text} {joint} sent {amount} bytes."


def remarks(comparison: Comparison) -> list[str]:
    """Return further remarks: failures, the fewest bytes, missed targets, unequal numbers of gradients."""
    rows, notes = comparison.rows, []
    failed = [row for row in rows if _has_failed(row)]
    if len(rows) > 1 and len(failed) < len(rows):
        notes += [f"{_failure(row)}." for row in failed]
    for entry in comparison.entries:
        found = next(filter(None, map(missing_numbers, entry.runs)), "")
        notes += [f"{entry.label}: {found}" if len(comparison.entries) > 1 else found] if found else []
    if comparison.predictions:
        return notes + _of_predictions(comparison.predictions)
    sent = [(row.bytes_to_target.mean, row) for row in rows if row.bytes_to_target.mean is not None]
    if len(sent) > 1:
        least, frugal = min(sent, key=lambda pair: pair[0])
        saving = frugal.bytes_saving.mean
        if frugal.label not in verdict(comparison) and saving is not None and saving >= SAME:
            amount = f"{units.size(least)}, {units.ratio(saving)} fewer than {comparison.baseline}"
            notes.append(f"{frugal.label} sent the fewest bytes: {amount}.")
    late = [row.label for row in rows if comparison.target is not None and not row.time_to_target_s.is_complete]
    if len(rows) > 1 and 0 < len(late) < len(rows):
        notes.append(f"Not every seed of {', '.join(late)} reached the target.")
    return notes + _of_gradients([row for row in rows if not row.statuses])


def missing_numbers(run: Run) -> str:
    """Return which workers the numbers of ``run`` leave out, as a sentence; an empty text if none."""
    if not (missing := run.missing_workers):
        return ""
    names = f"worker{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    which = "it" if len(missing) == 1 else "they"
    return (
        f"The numbers of {names} of {run.workers} are missing, because {which} could not report when the run ended: "
        f"counts and bytes are those of the others, and shares and means are over the others."
    )


def _of_gradients(rows: list[TableRow]) -> list[str]:
    """Return a remark if strategies used different numbers of gradients."""
    used = [(row.gradients.mean, row.label) for row in rows if row.gradients.mean]
    used.sort(key=itemgetter(0))  # the first of equals is named
    (least, frugal), (most, _) = used[0] if used else (0, ""), used[-1] if used else (0, "")
    greedy = next((label for count, label in used if count == most), "")
    if not least or not most or most < SAME * least:
        return []
    return [
        f"Not at equal numbers of gradients: {frugal} used {units.count(least)}, {greedy} {units.count(most)}; "
        f"a step is one update of the model with a server, and one gradient of every worker without."
    ]


def _of_predictions(found: Sequence[Prediction]) -> list[str]:
    notes = [f"{one}." for one in found[_SHOWN:]]
    for one in found:
        if one.predicted_bytes != one.measured_bytes:
            sizes = f"predicted {units.size(one.predicted_bytes)}, measured {units.size(one.measured_bytes)}"
            notes.append(f"{one.strategy} sent other bytes: {sizes}.")
    if not all(one.has_measured_steps for one in found):
        notes.append(
            "The simulation did not use the step times of the measured run; "
            "tacit simulate --config RUN/run.toml --cluster RUN does."
        )
    return notes


def _has_failed(row: TableRow) -> bool:
    return any(status.partition(" failed")[1] for status in row.statuses)


def _failure(row: TableRow, workload: str = "") -> str:
    """Return which run failed, with which seed, and why."""
    what = row.label or f"The run of {workload}"
    reasons = [status.partition(" failed: ") for status in row.statuses if " failed" in status]
    seeds = f", {reasons[0][0]}," if len(row.seeds) > 1 else ""
    reason = reasons[0][2].partition("\n")[0].rstrip(".")
    return f"{what}{seeds} failed{f': {reason}' if reason else ''}"


def _alone(row: TableRow, workload: str) -> str:
    seeds = f" (mean of {len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
    steps = max(seed["steps"] for seed in row.seeds)
    sent = units.size(row.bytes_sent.mean or 0.0)
    if row.rounds.mean is not None:
        sent += f" in {units.count(row.rounds.mean)} rounds"
    elif messages := sum(seed["messages"] for seed in row.seeds) / len(row.seeds):
        sent += f" in {units.count(messages)} messages"
    loss = "measured no loss" if row.loss.mean is None else f"ended at loss {units.loss(row.loss.mean)}"
    if _has_failed(row) and not steps:
        return f"{_failure(row, workload)} (before the first step)."
    if _has_failed(row):
        time = units.seconds(row.time_s.mean or 0.0)
        return f"{_failure(row, workload)} (after {time} and {units.count(steps)} steps; sent {sent})."
    took = f"took {units.seconds(row.time_s.mean or 0.0)} for {units.count(steps)} steps"
    return f"{row.label or f'The run of {workload}'} {took}, sent {sent}, and {loss}{seeds}."


def _time(row: TableRow) -> str:
    return units.seconds(row.time_to_target_s.mean or 0.0)


def _bytes(row: TableRow) -> str:
    return units.size(row.bytes_to_target.mean or 0.0)
