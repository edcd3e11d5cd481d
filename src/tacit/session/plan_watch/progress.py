"""Lines about a run next to its plan: progress, and what has drifted."""

from __future__ import annotations

import time
from typing import Final

from tacit.session.plan_watch.drift import NETWORK, Drift

_ON_PLAN: Final = 0.1
"""A pace within this share of the planned one is "on plan"."""
_MILLISECONDS: Final = 1.0
"""Times below this many seconds are in milliseconds."""


def duration(seconds: float) -> str:
    """Return a time with three digits: "228 ms", "1.21 s", "12.0 min"."""
    if seconds < _MILLISECONDS:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def pair(measured_s: float, planned_s: float, unit: str = "") -> str:
    """Return a measured and a planned time: "228 ms a step (229 planned)"."""
    measured, planned = duration(measured_s), duration(planned_s)
    number, _, scale = planned.partition(" ")
    shown = number if measured.endswith(f" {scale}") else planned
    return f"{measured}{unit} ({shown} planned)"


def loss_text(loss: float, measured: int, step: int) -> str:
    """Return a loss at ``step``, with the step at which it was measured if that is an earlier one."""
    return f"loss {loss:.4g}" + ("" if measured == step else f" at step {measured}")


def progress_line(
    *,
    step: int,
    steps: int | None,
    loss: tuple[float, int] | None,
    step_s: float,
    planned_step_s: float,
    communication: float | None,
    begun: float,
    stopped_s: float,
    now: float | None = None,
) -> str:
    """Return the progress line.

    loss: that of the last evaluation, and its step. begun, now: times in seconds since the epoch. stopped_s: in which
    the clock of the run stood, for evaluations.
    """
    parts = [f"step {step}" if steps is None else f"step {step}/{steps}"]
    if loss is not None:
        parts.append(loss_text(*loss, step))
    parts.append(pair(step_s, planned_step_s, " a step"))
    if communication is not None:
        parts.append(f"communication {100 * communication:.0f} %")
    parts.append(_on_plan(step_s / planned_step_s))
    if steps is not None:
        at = time.time() if now is None else now
        ends, planned = at + max(0, steps - step) * step_s, begun + stopped_s + steps * planned_step_s
        parts[-1] += f", ends {_clock(ends, at)} ({_clock(planned, at)} planned)"
    return "  ".join(parts)


def _on_plan(ratio: float) -> str:
    if abs(ratio - 1) <= _ON_PLAN:
        return "on plan"
    return f"{100 * abs(ratio - 1):.0f} % {'slower' if ratio > 1 else 'faster'} than planned"


def _clock(at: float, now: float) -> str:
    """Return the time of day; with seconds if it is near, and with the date if it is another day."""
    local, today = time.localtime(at), time.localtime(now)
    if local[:3] != today[:3]:
        return time.strftime("%d %b %H:%M", local)
    return time.strftime("%H:%M:%S" if abs(at - now) < 600 else "%H:%M", local)


def drift_text(drift: Drift, step: int) -> str:
    """Return what has drifted, and by how much, as a sentence."""
    times = pair(drift.measured_s, drift.planned_s)
    ratio = drift.measured_s / drift.planned_s if drift.planned_s > 0 else 0.0
    much = f" ({max(ratio, 1 / ratio):.1f} times)" if ratio > 0 else ""
    slower = "slower" if drift.measured_s > drift.planned_s else "faster"
    if drift.cause == NETWORK:
        cause = "the network is as planned again" if drift.is_over else f"the network is {slower}{much}"
        return f"step {step}: rounds take {times}: {cause}."
    cause = "it computes as planned again" if drift.is_over else f"it computes {slower}{much}"
    return f"step {step}: a step of worker {drift.rank} takes {times}: {cause}."
