"""The report's first sentence, made from its numbers."""

from __future__ import annotations

from tacit.report import units
from tacit.report.comparison import Comparison, TableRow

SAME = 1.05  # ratios nearer to 1 than this are called equal


def verdict(comparison: Comparison) -> str:
    """Return one plain sentence or two: who won, by how much, and at which cost."""
    rows, target = comparison.rows, comparison.target
    if len(rows) == 1:
        return _alone(rows[0])
    if target is None:
        if any(row.loss.values != (None,) * len(row.loss.values) for row in rows):
            return "No strategy brought the loss below where it started; a smaller learning rate is the usual way out."
        return "No run has measured a loss, so there is nothing to compare yet."
    loss = f"loss {units.target(target)}"
    arrived = [row for row in rows if row.time_to_target_s.mean is not None]
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
        text = f"{winner.label} reached {loss} {units.ratio(faster)} sooner than {baseline.label}"
    elif faster > 1 / SAME:
        text = f"{winner.label} reached {loss} about as soon as {baseline.label}"
    else:
        text = (
            f"No strategy beat {baseline.label} to {loss}; {winner.label} came nearest, {units.ratio(1 / faster)} later"
        )
    if saving is None or 1 / SAME < saving < SAME:
        return f"{text}."
    less = saving >= SAME
    joint = "and" if less or faster < 1 / SAME else "but"
    amount = f"{units.ratio(saving)} fewer" if less else f"{units.ratio(1 / saving)} as many"
    return f"{text} {joint} sent {amount} bytes."


def remarks(comparison: Comparison) -> list[str]:
    """Return what else a reader should know at once: who sent least, who did not arrive."""
    rows, said = comparison.rows, []
    sent = [(row.bytes_to_target.mean, row) for row in rows if row.bytes_to_target.mean is not None]
    if len(sent) > 1:
        least, frugal = min(sent, key=lambda pair: pair[0])
        saving = frugal.bytes_saving.mean
        if frugal.label not in verdict(comparison) and saving is not None and saving >= SAME:
            amount = f"{units.size(least)}, {units.ratio(saving)} fewer than {comparison.baseline}"
            said.append(f"{frugal.label} sent the fewest bytes: {amount}.")
    late = [row.label for row in rows if comparison.target is not None and not row.time_to_target_s.is_complete]
    if len(rows) > 1 and 0 < len(late) < len(rows):
        said.append(f"Not every seed of {', '.join(late)} reached the target.")
    return said


def _alone(row: TableRow) -> str:
    seeds = f" (mean of {len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
    steps = max(seed["steps"] for seed in row.seeds)
    parts = [f"took {units.seconds(row.time_s.mean or 0.0)} for {units.count(steps)} steps"]
    parts.append(f"sent {units.size(row.bytes_sent.mean or 0.0)} in {units.count(row.rounds.mean or 0.0)} rounds")
    parts.append("measured no loss" if row.loss.mean is None else f"ended at loss {units.loss(row.loss.mean)}")
    return f"{row.label} {parts[0]}, {parts[1]}, and {parts[2]}{seeds}."


def _time(row: TableRow) -> str:
    return units.seconds(row.time_to_target_s.mean or 0.0)


def _bytes(row: TableRow) -> str:
    return units.size(row.bytes_to_target.mean or 0.0)
