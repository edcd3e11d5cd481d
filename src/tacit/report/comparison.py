"""Comparison of several strategies on one workload and cluster: the numbers of every table and figure.

All numbers come from Runs, simulated and real ones in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import numpy as np

from tacit.errors import nearest, require
from tacit.record.run import Run, gradient_times_s, has_rounds, number
from tacit.record.trace import Trace
from tacit.report.curves import AXES, Curve, over_seeds, rows_of
from tacit.report.prediction import Prediction, predictions
from tacit.report.timeline import shares

FORMAT: Final = 1
MARGIN: Final = 0.05  # of the target above the loss that all strategies reach, to stay above the noise


@dataclass(frozen=True)
class Entry:
    """One strategy's runs, one per seed. ``note``: text below its name, such as the tuned learning rate."""

    label: str
    runs: Sequence[Run]
    note: str = ""

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, f"runs=[] of {self.label!r} is empty; an entry needs at least one run.")
        seeds = [run.seed for run in self.runs]
        require(len(set(seeds)) == len(seeds), f"seeds={seeds} of {self.label!r} repeat; give each run its own seed.")

    def curve(self, x: str, y: str) -> Curve | None:
        """Return ``y`` of the reported model against ``x``; held at the end if all runs finished."""
        is_held = all(run.status == "finished" for run in self.runs)
        return over_seeds([rows_of(run) for run in self.runs], x, y, is_held=is_held)


@dataclass(frozen=True)
class Measured:
    """One number per seed; None where a seed has none (it never reached the target, it was not measured)."""

    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The numbers of the seeds that have one."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over all seeds; None unless every seed has a number, as a mean over the others would be biased."""
        return sum(self.known) / len(self.values) if self.is_complete else None

    @property
    def is_complete(self) -> bool:
        """Every seed has a number."""
        return len(self.known) == len(self.values) > 0

    def as_json(self) -> dict[str, Any]:
        """Return the mean, the range and the numbers of the seeds."""
        low, high = (min(self.known), max(self.known)) if self.known else (None, None)
        return {"mean": self.mean, "low": low, "high": high, "per_seed": list(self.values)}


@dataclass(frozen=True)
class TableRow:
    """One strategy's row of the table."""

    label: str
    note: str
    statuses: tuple[str, ...]  # of the runs that did not finish
    time_to_target_s: Measured
    bytes_to_target: Measured
    rounds_to_target: Measured  # None where the strategy has no rounds
    gradients_to_target: Measured  # gradients used, one mini-batch each
    speed_up: Measured  # baseline's time to the target over this one's, seed by seed; larger = sooner
    bytes_saving: Measured  # baseline's bytes to the target over this one's, seed by seed; larger = fewer
    loss: Measured  # the last one
    metric: Measured
    time_s: Measured
    bytes_sent: Measured
    rounds: Measured
    gradients: Measured
    idle: Measured  # share of the workers' time spent waiting
    finished: Measured  # share in which workers had taken their last step and waited for the others
    shares: Mapping[str, float]  # computing, cancelled, waiting, talking (communicating), hooks, other; mean over seeds
    seeds: tuple[Mapping[str, Any], ...]  # every run's own summary, with its seed


@dataclass(frozen=True)
class Comparison:
    """Runs to compare. ``baseline``: a label, or None for no speed-ups; ``target_loss=None``: chosen from the losses.

    ``reproduce`` is the command line or TOML text that makes the report again; the first run's config stands in for it.
    """

    entries: Sequence[Entry]
    workload: str
    cluster: str
    baseline: str | None = None
    target_loss: float | None = None
    reproduce: str = ""

    def __post_init__(self) -> None:
        require(len(self.entries) > 0, "entries=[] is empty; a comparison needs at least one strategy.")
        labels = [entry.label for entry in self.entries]
        require(len(set(labels)) == len(labels), f"labels={labels} repeat; give each entry its own label.")
        if self.baseline is not None and self.baseline not in labels:
            raise ValueError(
                f"baseline={self.baseline!r} must be the label of an entry{nearest(self.baseline, labels)}"
            )

    @classmethod
    def of(cls, runs: Iterable[Run | Entry], target_loss: float | None = None, reproduce: str = "") -> Comparison:
        """Compare runs of one workload, by strategy, or entries with labels of their own; AllReduce is the baseline."""
        entries = [run for run in runs if isinstance(run, Entry)]
        plain: dict[str, list[Run]] = {}
        for run in runs:
            if not isinstance(run, Entry):
                plain.setdefault(run.strategy, []).append(run)
        entries += [Entry(label, group) for label, group in plain.items()]
        require(len(entries) > 0, "runs=[] is empty; a comparison needs at least one run.")
        every = [run for entry in entries for run in entry.runs]
        workloads = sorted({run.workload for run in every})
        require(
            len(workloads) == 1,
            f"the runs train different things ({' and '.join(workloads)}), so their losses cannot be compared; "
            f"draw one report for each.",
        )
        cluster = " / ".join(sorted({run.cluster or f"{run.workers} workers" for run in every}))
        first = next((e.label for e in entries if e.label.startswith("AllReduce(")), entries[0].label)
        baseline = None if predictions(every) else first
        return cls(entries, workloads[0], cluster, baseline, target_loss, reproduce)

    @cached_property
    def target(self) -> float | None:
        """The loss that time, bytes and rounds are measured to: the given one, or ``default_target_loss``."""
        return default_target_loss(self.entries, self.baseline) if self.target_loss is None else self.target_loss

    @cached_property
    def rows(self) -> list[TableRow]:
        """The table, in the order of the entries."""
        baseline = next((entry for entry in self.entries if entry.label == self.baseline), None)
        return [_table_row(entry, baseline, self.target) for entry in self.entries]

    @cached_property
    def predictions(self) -> list[Prediction]:
        """Strategies that were both measured on real processes and simulated, with predicted and measured times."""
        return predictions([run for entry in self.entries for run in entry.runs])

    @property
    def metric_name(self) -> str | None:
        """The name of the metric that the runs measured besides the loss, if any."""
        return next((run.metric_name for entry in self.entries for run in entry.runs if run.metric_name), None)

    @property
    def has_speed_ups(self) -> bool:
        """Whether there is a baseline, another strategy, and a target."""
        return self.baseline is not None and len(self.entries) > 1 and self.target is not None

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for JSON: finite numbers, texts, None, lists and dicts with text keys."""
        described = {
            "format": FORMAT,
            "workload": self.workload,
            "cluster": self.cluster,
            "baseline": self.baseline,
            "target_loss": self.target,
            "metric_name": self.metric_name,
            "reproduce": self.reproduce,
            "predictions": [{**vars(one), "error": one.error} for one in self.predictions],
            "strategies": [_described(entry, row) for entry, row in zip(self.entries, self.rows, strict=True)],
        }
        finite: dict[str, Any] = jsonable(described)
        return finite


def default_target_loss(entries: Sequence[Entry], baseline: str | None = None) -> float | None:
    """Return a loss that every seed of every strategy that learned has reached, or None with nothing to compare.

    A strategy's reach is the best loss of its worst seed. It learned when, on a log scale, its reach closed at
    least half of the gap from the start to the best reach of all; one that diverged or stalled must not decide the
    target for the others, and does not reach it. The baseline counts if it improved at all: a speed-up
    over a baseline that never reaches the target has no meaning. The target is a round number up to 5 % above the
    worst of these reaches (or 5 % of the way back to the start, where that is less).
    """
    losses = {entry.label: [_losses(run) for run in entry.runs] for entry in entries}
    reach = {label: max(map(min, seeds)) for label, seeds in losses.items() if all(seeds)}
    if len(entries) < 2 or not reach:
        return None
    start, best = max(seed[0] for seeds in losses.values() for seed in seeds if seed), min(reach.values())
    if best >= start:
        return None  # no strategy reduced the loss
    height: Callable[[float], float] = math.log if best > 0 else float
    enough = height(start) - (height(start) - height(best)) / 2
    learned = [r for label, r in reach.items() if height(r) <= enough or (label == baseline and r < start)]
    worst = max(learned)
    margin = MARGIN * min(abs(worst), start - worst)
    return _roundest(worst + margin / 2, worst + margin)


def jsonable(value: Any) -> Any:
    """Return ``value`` with arrays as lists, tuples as lists, and NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [jsonable(inner) for inner in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return number(float(value))
    return value if value is None else str(value)


def _table_row(entry: Entry, baseline: Entry | None, target: float | None) -> TableRow:
    summaries = [run.summary() for run in entry.runs]
    divided = [shares(run.trace.columns()) for run in entry.runs if len(run.trace)] or [shares(Trace().columns())]

    def last(key: str) -> Measured:
        pairs = zip(entry.runs, summaries, strict=True)
        return Measured(tuple(number(summary[key]) if len(run.trace) else None for run, summary in pairs))

    def to_target(key: str) -> Measured:
        return Measured(tuple(_to_target(run, target, key) for run in entry.runs))

    return TableRow(
        label=entry.label,
        note=entry.note,
        statuses=tuple(_status(run) for run in entry.runs if run.status != "finished"),
        time_to_target_s=to_target("time_s"),
        bytes_to_target=to_target("bytes_sent"),
        rounds_to_target=to_target("round"),
        gradients_to_target=to_target("gradients"),
        speed_up=_paired(baseline, entry, target, "time_s"),
        bytes_saving=_paired(baseline, entry, target, "bytes_sent"),
        loss=last("loss"),
        metric=last("metric"),
        time_s=last("time_s"),
        bytes_sent=last("bytes_sent"),
        rounds=Measured(tuple(_rounds(run, s) for run, s in zip(entry.runs, summaries, strict=True))),
        gradients=last("gradients"),
        idle=last("idle"),
        finished=last("finished"),
        shares={name: sum(d[name] for d in divided) / len(divided) for name in divided[0]},
        seeds=tuple({"seed": run.seed, **s} for run, s in zip(entry.runs, summaries, strict=True)),
    )


def _paired(baseline: Entry | None, entry: Entry, target: float | None, key: str) -> Measured:
    """Return baseline's number over the entry's, seed by seed: equal seeds meet equal delays and data."""
    theirs = {run.seed: _to_target(run, target, key) for run in baseline.runs} if baseline else {}
    ratios = []
    for run in entry.runs:
        ours, other = _to_target(run, target, key), theirs.get(run.seed)
        ratios.append(other / ours if ours and other is not None else None)
    return Measured(tuple(ratios))


def _to_target(run: Run, target: float | None, key: str) -> float | None:
    row = None if target is None else run.first_reaching(target)
    if row is None or (key == "round" and not has_rounds(run.trace.columns())):
        return None
    if key == "gradients":
        return float(np.searchsorted(gradient_times_s(run.trace), row["time_s"], "right"))
    return number(row.get(key))


def _rounds(run: Run, summary: Mapping[str, Any]) -> float | None:
    """Return the rounds of a run, from its trace or its history; None where it has none, as messages are not rounds."""
    if not len(run.trace) or not has_rounds(run.trace.columns()):
        return None
    counted = summary["rounds"] or next((r["round"] for r in reversed(run.history) if r.get("round") is not None), 0)
    return number(counted)


def _roundest(low: float, high: float) -> float:
    """Return the number with the fewest digits between two: «reached loss 0.055» reads better than 0.05474."""
    if low == 0 or low >= high:
        return high
    for place in range(-math.floor(math.log10(abs(high))), 300):
        rounded = float(round(math.ceil(low * 10.0**place) / 10.0**place, max(place, 0)))
        if low <= rounded <= high:
            return rounded
    return high


def _status(run: Run) -> str:
    return f"seed {run.seed} {run.status.partition(';')[0]}"  # what happened; the way out stands in the run itself


def _losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.history if number(row["loss"]) is not None]


def _described(entry: Entry, row: TableRow) -> dict[str, Any]:
    measured = {f.name: getattr(row, f.name) for f in fields(row)}
    curves = {}
    for axis in AXES:
        curve = entry.curve(axis, "loss")
        curves[axis] = (
            None if curve is None else {"x": curve.x, "mean": curve.mean, "low": curve.low, "high": curve.high}
        )
    return {
        **{name: value.as_json() if isinstance(value, Measured) else value for name, value in measured.items()},
        "loss_curves": curves,
    }
