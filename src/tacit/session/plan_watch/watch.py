"""What rank 0 does with the times of rounds in a run that follows a plan: the progress line, and the drift rule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tacit.session.plan_watch.display import LogDisplay
from tacit.session.plan_watch.drift import Drift, DriftRule, Expected, RoundTimes
from tacit.session.plan_watch.progress import drift_text, progress_line

if TYPE_CHECKING:
    from tacit.session.backend import LiveRound
    from tacit.session.planned import Planned

Measured = tuple[float, int]
"""A loss, and the step at which it was measured."""
_FIRST_S: Final = 2.0
"""The first line comes after this time."""
_LAST_S: Final = 2.0
"""How long the end of a run waits for a re-planning that has begun."""


class PlanWatch:
    """Follows one run. ``drifts`` are the entries of ``run.record["drift"]``.

    workers, steps: of the run. A run of another number of workers than planned is not compared with the plan.
    """

    def __init__(self, plan: Planned, workers: int, steps: int | None) -> None:
        expected = Expected.of(plan.predicted)
        is_same = expected is not None and len(expected.compute_s) == workers
        self._rule = DriftRule(expected) if expected is not None and is_same else None
        self._plan, self._steps, self._display = plan, steps, plan.display or LogDisplay()
        self._planned_step_s: float = plan.predicted.get("step_s", 0.0) if plan.workers in (None, workers) else 0.0
        self._begun, self._next_s = time.time(), time.monotonic() + _FIRST_S
        self._shown = (0, 0.0)  # step and time of the last line
        self._busy_s = self._elapsed_s = 0.0  # of all ranks in the rounds since the last line
        self._latest: LiveRound | None = None
        self._round_s = 0.0  # time of the latest round
        self._threads: list[threading.Thread] = []
        self.drifts: list[dict[str, Any]] = []

    def end_step(self, step: int, time_s: float, live: LiveRound | None, loss: Callable[[], Measured | None]) -> None:
        """Take note that ``step`` has ended at ``time_s``. live: the latest round. loss: returns the latest."""
        if live is not None and live is not self._latest:
            self._end_round(step, time_s, live)
        if time.monotonic() >= self._next_s:
            self._show_progress(step, time_s, loss())

    def continue_from(self, step: int, time_s: float) -> None:
        """Take note that the run continues from a checkpoint."""
        self._shown, self._round_s = (step, time_s), time_s

    def _end_round(self, step: int, time_s: float, live: LiveRound) -> None:
        times = RoundTimes(live.steps, time_s - self._round_s, live.compute_s, live.hook_s)
        self._latest, self._round_s = live, time_s
        self._elapsed_s += times.elapsed_s * len(live.compute_s)
        self._busy_s += sum(live.compute_s) + sum(live.hook_s)
        drift = None if self._rule is None else self._rule.add(times)
        if drift is not None:
            self._show_drift(drift, step, time_s)

    def _show_progress(self, step: int, time_s: float, loss: Measured | None) -> None:
        every_s, (shown_step, shown_s) = self._display.every_s, self._shown
        self._next_s = time.monotonic() + (60.0 if every_s is None else every_s)
        if every_s is None or step <= shown_step or not self._planned_step_s:
            return
        share = 1 - self._busy_s / self._elapsed_s if self._elapsed_s else None
        line = progress_line(
            step=step,
            steps=self._steps,
            loss=loss,
            step_s=(time_s - shown_s) / (step - shown_step),
            planned_step_s=self._planned_step_s,
            communication=None if share is None else max(0.0, share),
            stopped_s=max(0.0, time.time() - self._begun - time_s),
            begun=self._begun,
        )
        self._shown, self._busy_s, self._elapsed_s = (step, time_s), 0.0, 0.0
        self._display.progress(line)

    # Drifts.

    def _show_drift(self, drift: Drift, step: int, time_s: float) -> None:
        text = drift_text(drift, step)
        entry: dict[str, Any] = {"step": step, "time_s": time_s, "text": text, **asdict(drift)}
        entry |= {"compute_s": list(drift.compute_s), "is_over": drift.is_over}
        self.drifts.append(entry)
        if drift.is_over or self._plan.replan is None:
            self._display.drift(text)
            return
        thread = threading.Thread(target=self._replan, args=(drift, text, entry), daemon=True, name="tacit re-planning")
        self._threads.append(thread)
        thread.start()

    def _replan(self, drift: Drift, text: str, entry: dict[str, Any]) -> None:
        """Add to ``text`` what a new plan would choose, and show it. In a thread of its own."""
        assert self._plan.replan is not None
        try:
            found = self._plan.replan(drift)
        except Exception as error:  # noqa: BLE001 - a suggestion must not end the run
            found = f"Re-planning failed: {error}"
        entry["replanned"] = found
        command = f"To plan again with this run's times: tacit plan --profile {self._plan.folder}"
        self._display.drift(" ".join(filter(None, (text, found, command))))

    def close(self) -> None:
        """Wait a moment for a re-planning in progress."""
        for thread in self._threads:
            thread.join(_LAST_S)
