"""The ledger of predictions: measured and predicted times of earlier planned runs, by which intervals are widened.

A run with plan.toml adds a line to ``ledger.jsonl`` beside it, and ``tacit plan`` reads the ledger beside the plan.toml
that it writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.errors import require
from tacit.planning.work import is_timed_with_gradients
from tacit.record.reaching import row_reaching
from tacit.record.run import Run
from tacit.registry.tables import parsed
from tacit.strategies import Strategy

PRIOR: Final = {"rounds": 1.05, "asynchronous": 1.2}
"""Factors without any earlier run: the errors of ``make bench-fidelity`` that 9 of 10 cells stay within."""
_SHARE: Final = 0.9
_WEIGHT: Final = 9
"""The prior counts as much as this many runs. One bad run is then the one of ten that may lie outside; two are not."""
_FEWEST_STEPS: Final = 20
"""Shorter runs say little about the pace."""


def ledger_beside(plan: Path) -> Path:
    """Return the path of the ledger of plan.toml."""
    return plan.parent / "ledger.jsonl"


@dataclass(frozen=True)
class Ledger:
    """Measured and predicted times, one JSON line for each planned run. ``path`` None: no earlier runs."""

    path: Path | None = None

    def add(self, kind: str, *, predicted_s: float, measured_s: float, strategy: str, **more: object) -> None:
        """Add a run that was planned: its predicted and measured time of a step.

        kind: "rounds" or "asynchronous". more: ``target_predicted_s`` and ``target_measured_s``, of the time to the
        target loss; ``changed``: whether times changed during the run, which is no error of the plan.
        """
        require(kind in PRIOR, f"kind={kind!r} must be one of {', '.join(PRIOR)}.")
        require(predicted_s > 0 and measured_s > 0, "predicted_s and measured_s must be positive.")
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"kind": kind, "strategy": strategy, "predicted_s": predicted_s, "measured_s": measured_s, **more}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def add_run(self, run: Run) -> None:
        """Add a finished run with ``run.predicted``; runs of fewer than 20 steps are left out."""
        predicted, summary = run.predicted, run.summary()
        if "step_s" not in predicted or summary["steps"] < _FEWEST_STEPS or not summary["time_s"]:
            return
        self.add(
            kind_of(parsed("strategy", run.strategy, "strategies")),
            predicted_s=predicted["step_s"],
            measured_s=summary["time_s"] / summary["steps"],
            strategy=run.strategy,
            **_to_target(run),
            changed=any(one["was_as_planned"] for one in run.record.get("drift", [])),
        )

    def widening(self, kind: str) -> float:
        """Return the factor within which 9 of 10 measured times were; the prior counts as nine runs."""
        errors = sorted([*self._errors(kind), *[math.log(PRIOR[kind])] * _WEIGHT])
        return math.exp(errors[math.ceil(_SHARE * len(errors)) - 1])

    def _errors(self, kind: str) -> Iterator[float]:
        """Yield, for each run, the larger logarithm of its two ratios."""
        if self.path is None or not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                if entry["kind"] != kind or entry.get("changed"):
                    continue
                found = [abs(math.log(entry["measured_s"] / entry["predicted_s"]))]
                if "target_predicted_s" in entry:
                    found.append(abs(math.log(entry["target_measured_s"] / entry["target_predicted_s"])))
                yield max(found)
            except (ValueError, KeyError, TypeError, ZeroDivisionError):
                continue  # a line that was cut when a process was killed


def kind_of(strategy: Strategy[Any]) -> str:
    """Return the key of ``PRIOR`` for a strategy."""
    return "asynchronous" if is_timed_with_gradients(strategy) else "rounds"


def _to_target(run: Run) -> Mapping[str, Any]:
    """Return the measured time to the target, and the predicted one nearest to it.

    The prediction is the range over seeds and draws, before it was widened: what lies in it is no error.
    """
    predicted = run.predicted
    reached = None if "target_loss" not in predicted else row_reaching(run, predicted["target_loss"])
    if reached is None or "time_low_s" not in predicted:
        return {}
    low_s, high_s = predicted["time_low_s"] * predicted["widened"], predicted["time_high_s"] / predicted["widened"]
    return {
        "target_predicted_s": min(max(reached["time_s"], low_s), high_s),
        "target_measured_s": reached["time_s"],
    }
