"""What the page of ``tacit watch`` shows, as a table for JSON: texts, tiles, curves and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tacit.report import units
from tacit.report.figures import ACTIVITY_COLOURS, GREY, PALETTE
from tacit.report.verdict import missing_numbers
from tacit.watch.followed_run import FollowedRun
from tacit.watch.times import RECENT_S, WorkerTimes, all_reduce_bytes, pace_s, times_of

View = dict[str, Any]
_POINTS: Final = 400
_BARS: Final = 24
"""Most workers that are shown one by one."""
_SILENT_S: Final = 20.0
_ON_PLAN: Final = 0.1
_SAME: Final = 1.05  # a ratio below this is no difference
_COLOURS: Final = {
    "computing": ACTIVITY_COLOURS["computing"],
    "hooks": ACTIVITY_COLOURS["hooks"],
    "wire": ACTIVITY_COLOURS["talking"],
    "waiting": ACTIVITY_COLOURS["waiting"],
}
ELEMENT_BYTES: Final = {"float16": 2, "bfloat16": 2, "float64": 8}


def view_of(followed: FollowedRun) -> View:
    """Return what the page shows now."""
    if not followed.workers:
        return {"state": "waiting", "folder": str(followed.folder), "message": followed.what_is_missing}
    return _RunView(followed).view()


class _RunView:
    def __init__(self, followed: FollowedRun) -> None:
        self._followed, self._workers = followed, followed.workers
        self._header = followed.workers[0].header
        self._predicted: Mapping[str, Any] = self._header.get("predicted") or {}
        self._is_over = followed.state != "running"
        self._has_server = any(one.slices and one.slices[-1].updates is not None for one in self._workers)
        self._has_rounds = bool(self._header.get("has_rounds"))
        self._times = times_of(self._workers, has_rounds=self._has_rounds, is_whole=self._is_over)
        self._pace_s = pace_s(self._workers, is_whole=self._is_over)

    def view(self) -> View:
        header, settings = self._header, self._followed.settings
        done, steps = self._done, header.get("steps")
        silent_s = self._followed.silent_s
        return {
            "state": self._followed.state,
            "is_over": self._is_over,
            "silent": f"no news for {units.seconds(silent_s)}" if silent_s > _SILENT_S else "",
            "folder": str(self._followed.folder),
            "message": self._missing_workers(),
            "strategy": str(header.get("strategy", "")),
            "workload": str(settings.get("workload") or header.get("model") or ""),
            "done": min(1.0, done / steps) if steps else None,
            "planned_done": self._planned_done(steps),
            "progress": f"{'update' if self._has_server else 'step'} {done:,}" + (f" of {steps:,}" if steps else ""),
            "tiles": [tile for tile in self._tiles() if tile],
            "charts": [chart for chart in (self._loss(), self._period()) if chart],
            "bars": self._bars(),
        }

    # Progress and pace.

    @property
    def _done(self) -> int:
        """Updates of the server, else the steps of the worker that has taken the fewest."""
        if self._has_server:
            return max(one.slices[-1].updates or 0 for one in self._workers if one.slices)
        return min((one.slices[-1].step for one in self._workers if one.slices), default=0)

    @property
    def _time_s(self) -> float:
        return max((one.slices[-1].time_s for one in self._workers if one.slices), default=0.0)

    @property
    def _planned_step_s(self) -> float | None:
        found = self._predicted.get("step_s")
        return float(found) if isinstance(found, int | float) and found > 0 else None

    def _planned_done(self, steps: int | None) -> float | None:
        if not steps or self._planned_step_s is None:
            return None
        return min(1.0, self._time_s / self._planned_step_s / steps)

    def _tiles(self) -> list[View | None]:
        return [self._time_tile(), self._loss_tile(), self._step_tile(), self._slowest_tile(), *self._traffic_tiles()]

    def _time_tile(self) -> View:
        steps, planned = self._header.get("steps"), self._planned_step_s
        whole = f"{units.seconds(steps * planned)} planned" if steps and planned else ""
        if self._is_over:
            return _tile("time", units.seconds(self._time_s), whole or "without evaluations")
        if not steps or self._pace_s is None:
            return _tile("time", units.seconds(self._time_s), "without evaluations")
        left_s = max(0, steps - self._done) * self._pace_s
        whole_s = units.seconds(self._time_s + left_s)
        note = f"of {whole_s}" + (f", {whole}" if whole else "")
        return _tile("time left", units.seconds(left_s), note)

    def _loss_tile(self) -> View | None:
        points = self._losses()
        if not points:
            return None
        target, (time_s, loss) = self._predicted.get("target_loss"), points[-1]
        note = f"after {units.seconds(time_s)}"
        if isinstance(target, int | float):
            reached = next((at for at, value in points if value <= target), None)
            note = f"target {units.target(target)}" + ("" if reached is None else f", after {units.seconds(reached)}")
            planned_s = self._predicted.get("time_median_s")
            if isinstance(planned_s, int | float):
                note += f" ({units.seconds(planned_s)} planned)"
        return _tile("loss", units.loss(loss), note)

    def _step_tile(self) -> View | None:
        if self._pace_s is None:
            return None
        what, note = "an update" if self._has_server else "a step", ""
        if self._planned_step_s is not None:
            ratio = self._pace_s / self._planned_step_s
            off = f"{100 * abs(ratio - 1):.0f} % {'slower' if ratio > 1 else 'faster'}"
            note = f"{units.seconds(self._planned_step_s)} planned: {'on plan' if abs(ratio - 1) <= _ON_PLAN else off}"
        return _tile(f"time of {what}", units.seconds(self._pace_s), note or self._span)

    @property
    def _span(self) -> str:
        return "over the whole run" if self._is_over else f"over the last {RECENT_S:.0f} s"

    def _slowest_tile(self) -> View | None:
        known = [one for one in self._times if one.steps]
        if len(known) < 2:
            return None
        slowest, fastest = (choose(known, key=lambda one: one.compute_step_s) for choose in (max, min))
        if not fastest.compute_step_s:
            return None
        ratio = slowest.compute_step_s / fastest.compute_step_s
        note = f"computes {units.seconds(slowest.compute_step_s)} a step, "
        note += f"{units.ratio(ratio)} the fastest" if ratio >= _SAME else "about as fast as the others"
        return _tile("slowest worker", f"worker {slowest.rank}", note)

    def _traffic_tiles(self) -> list[View | None]:
        sent = sum(one.sent_bytes for worker in self._workers for one in worker.slices)
        steps = sum(one.steps for worker in self._workers for one in worker.slices)
        workers, parameters = int(self._header.get("workers") or 1), self._header.get("parameters")
        periods = [one.period for one in self._workers[0].slices if one.period is not None]
        period = _tile("period", f"{periods[-1]:.4g}", "steps between rounds") if periods else None
        if not isinstance(parameters, int) or workers < 2 or not steps:
            return [period, _tile("sent", units.size(sent), "by all workers")]
        each = all_reduce_bytes(parameters, ELEMENT_BYTES.get(str(self._header.get("dtype")), 4), workers)
        whole = steps / workers * each  # for as many gradients, also if some workers cannot be seen
        note = f"{units.size(sent)} sent; all-reduce in every step: {units.size(whole)}"
        saved = 1 - sent / whole
        if saved >= 0:
            return [period, _tile("bytes saved", units.share(saved), note)]
        return [period, _tile("bytes sent", f"{units.share(-saved)} more", note)]

    def _missing_workers(self) -> str:
        size, seen = int(self._header.get("workers") or 1), len(self._workers)
        if self._followed.run is not None:
            return missing_numbers(self._followed.run)
        if seen >= size or self._time_s == 0.0:
            return ""
        return f"{seen} of {size} workers can be seen here; the folders of other machines cannot."

    # Figures.

    def _losses(self) -> list[tuple[float, float]]:
        """Return evaluations; without them, the workers' mean losses."""
        evaluated = [(one.time_s, one.loss) for one in self._workers[0].evaluations]
        return evaluated or self._training_losses()

    def _training_losses(self) -> list[tuple[float, float]]:
        found = [one.training_loss for one in self._workers[0].slices]
        return [
            (one.time_s, loss) for one, loss in zip(self._workers[0].slices, found, strict=True) if loss is not None
        ]

    def _loss(self) -> View | None:
        evaluated = [(one.time_s, one.loss) for one in self._workers[0].evaluations]
        training, curve = self._training_losses(), self._predicted.get("curve") or {}
        planned = list(zip(curve.get("time_s", ()), curve.get("loss", ()), strict=False))
        series = [
            _series("training loss of worker 0", GREY, training, width=1.2),
            _series("planned", GREY, planned, dash="6 5"),
            _series("loss", PALETTE[0], evaluated),
        ]
        series = [one for one in series if one["points"]]
        if not (evaluated or training):
            return None
        target = self._predicted.get("target_loss")
        return {
            "title": "Loss",
            "y": "loss",
            "series": series,
            "target": target if isinstance(target, int | float) else None,
            "is_log": all(loss > 0 for one in series for _, loss in one["points"]),
        }

    def _period(self) -> View | None:
        points = [(one.time_s, one.period) for one in self._workers[0].slices if one.period is not None]
        if len({period for _, period in points}) < 2:
            return None
        series = [_series("steps between rounds", PALETTE[1], points, is_stepwise=True)]
        return {"title": "Period", "y": "steps between rounds", "series": series, "target": None, "is_log": False}

    def _bars(self) -> View | None:
        times = [one for one in self._times if one.elapsed_s > 0]
        if not times:
            return None
        activities = list(_COLOURS) if self._has_rounds else [name for name in _COLOURS if name != "wire"]
        mean = {name: sum(one.seconds[name] / one.elapsed_s for one in times) / len(times) for name in activities}
        rows = [_bar("all workers", mean, "")] if len(times) > 1 else []
        shown = sorted(times, key=lambda one: -one.compute_step_s)[:_BARS]
        for one in sorted(shown, key=lambda one: one.rank):
            rows.append(_bar(f"worker {one.rank}", _shares(one, activities), f"{units.seconds(one.compute_step_s)}"))
        hidden = len(times) - len(shown)
        return {
            "title": "Time of the workers",
            "note": f"{self._span[0].upper()}{self._span[1:]}. Right: computing per step."
            + (f" The {_BARS} slowest workers; {hidden} are not shown." if hidden else ""),
            "key": [{"name": name, "colour": _COLOURS[name]} for name in activities],
            "rows": rows,
        }


def _tile(name: str, value: str, note: str) -> View:
    return {"name": name, "value": value, "note": note}


def _shares(one: WorkerTimes, activities: Sequence[str]) -> dict[str, float]:
    return {name: one.seconds[name] / one.elapsed_s for name in activities}


def _bar(name: str, shares: Mapping[str, float], note: str) -> View:
    parts = [
        {"name": activity, "share": max(0.0, share), "text": units.share(max(0.0, share)), "colour": _COLOURS[activity]}
        for activity, share in shares.items()
    ]
    return {"name": name, "parts": parts, "note": note}


def _series(
    name: str,
    colour: str,
    points: Sequence[tuple[float, float]],
    *,
    dash: str = "",
    width: float = 2.4,
    is_stepwise: bool = False,
) -> View:
    """Return a line, thinned to as many points as a screen can show; the last point stays."""
    every = -(-len(points) // _POINTS)
    kept = [points[i] for i in range(len(points) - 1, -1, -every)][::-1] if points else []
    return {"name": name, "colour": colour, "dash": dash, "width": width, "step": is_stepwise, "points": kept}
