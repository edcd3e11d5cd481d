"""Predictions: how close the simulation of a run comes to the run measured on real processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.record.run import Run
from tacit.report import units


@dataclass(frozen=True)
class Prediction:
    """One strategy simulated and on real processes: means over the runs of each."""

    strategy: str
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float
    has_measured_steps: bool  # the simulation drew its step times from measured ones

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s if self.measured_s else 0.0

    def __str__(self) -> str:
        times = f"predicted {units.seconds(self.predicted_s)}, measured {units.seconds(self.measured_s)}"
        return f"{self.strategy}: {times}: {units.share(self.error)} off"


def is_real(run: Run) -> bool:
    """Whether the run was on real processes."""
    return run.record.get("world") == "processes"


def predictions(runs: Sequence[Run]) -> list[Prediction]:
    """Return every strategy that was both measured and simulated with the same workers and steps."""
    ended = [run for run in runs if run.status == "finished"]
    kinds = dict.fromkeys((run.strategy, run.workers, run.steps) for run in ended)
    found = []
    for kind in kinds:
        alike = [run for run in ended if (run.strategy, run.workers, run.steps) == kind]
        real, simulated = [run for run in alike if is_real(run)], [run for run in alike if not is_real(run)]
        if real and simulated:
            found.append(
                Prediction(
                    strategy=kind[0],
                    predicted_s=_mean(simulated, "time_s"),
                    measured_s=_mean(real, "time_s"),
                    predicted_bytes=_mean(simulated, "bytes_sent"),
                    measured_bytes=_mean(real, "bytes_sent"),
                    has_measured_steps=all(map(_has_measured_steps, simulated)),
                )
            )
    return found


def _mean(runs: Sequence[Run], key: str) -> float:
    return sum(float(run.summary()[key]) for run in runs) / len(runs)


def _has_measured_steps(run: Run) -> bool:
    compute = run.config.get("cluster", {}).get("compute", "")
    texts = compute.values() if isinstance(compute, dict) else compute if isinstance(compute, list) else [compute]
    return all(str(text).startswith("Recorded(") for text in texts) or run.cluster.startswith("replay of ")
