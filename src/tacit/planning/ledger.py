"""The ledger of predictions: measured over predicted times of earlier planned runs, by which intervals are widened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.errors import require

PRIOR: Final = {"rounds": 1.05, "asynchronous": 1.2}
"""Factors without any earlier run: the errors of ``make bench-fidelity`` that 9 of 10 cells stay within."""
_SHARE: Final = 0.9
_WEIGHT: Final = 5
"""The prior counts as much as this many runs."""


@dataclass(frozen=True)
class Ledger:
    """Ratios of measured to predicted time, one JSON line for each planned run. ``path`` None: no earlier runs."""

    path: Path | None = None

    def add(self, kind: str, *, predicted_s: float, measured_s: float, strategy: str) -> None:
        """Add a run that was planned. kind: "rounds" or "asynchronous"."""
        require(kind in PRIOR, f"kind={kind!r} must be one of {', '.join(PRIOR)}.")
        require(predicted_s > 0 and measured_s > 0, "predicted_s and measured_s must be positive.")
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"kind": kind, "strategy": strategy, "predicted_s": predicted_s, "measured_s": measured_s}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def widening(self, kind: str) -> float:
        """Return the factor within which 9 of 10 measured times were; the prior where there are few."""
        errors = sorted(abs(math.log(ratio)) for ratio in self._ratios(kind))
        own = [*errors, *[math.log(PRIOR[kind])] * _WEIGHT]
        own.sort()
        return math.exp(own[min(len(own) - 1, math.floor(_SHARE * len(own)))])

    def _ratios(self, kind: str) -> Iterator[float]:
        if self.path is None or not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                if entry["kind"] == kind:
                    yield entry["measured_s"] / entry["predicted_s"]
            except (ValueError, KeyError, TypeError, ZeroDivisionError):
                continue  # a line that was cut when a process was killed
