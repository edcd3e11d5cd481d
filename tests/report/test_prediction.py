"""A measured run beside its simulation: a check of the prediction, with the measured step times."""

from __future__ import annotations

import pytest

from tacit.record.trace import COMPUTE, Trace
from tacit.report import Comparison, Entry, verdict
from tacit.report.columns import cells, columns_of
from tacit.report.verdict import remarks
from tests.report.synthetic_runs import local_run


def both(*, factor: float = 1.1, compute: str = "Exponential(mean_s=0.02)") -> Comparison:
    """Return a run that was measured, and its simulation, which took ``factor`` times as long."""
    real, simulated = local_run(period=8, steps=40, workers=4), local_run(period=8, steps=40, workers=4)
    real.record = {"world": "processes"}
    simulated.config = {"cluster": {"compute": compute}}
    simulated.trace, end_s = Trace(), real.summary()["time_s"]
    simulated.trace.record(COMPUTE, 0, 0.0, factor * end_s, step=40)
    return Comparison.of([Entry("L measured", [real]), Entry("L simulated", [simulated])])


def test_a_run_and_its_simulation_are_a_check_and_no_race() -> None:
    found = both()
    assert found.baseline is None and not found.has_speed_ups
    measured_s = found.rows[0].time_s.mean
    assert measured_s is not None
    said = f"predicted {1.1 * measured_s:.2f} s, measured {measured_s:.2f} s: 10 % off."
    assert verdict(found) == f"LocalSGD: {said}"
    assert not any(cell.is_best for column in columns_of(found) for cell in cells(found, column))
    assert any("--cluster RUN does" in remark for remark in remarks(found))
    assert not any("--cluster RUN does" in remark for remark in remarks(both(compute="Recorded(times_s=[1.0])")))
    [one] = found.as_json()["predictions"]
    assert one["error"] == pytest.approx(0.1)


def test_other_bytes_are_said() -> None:
    assert any("sent other bytes: predicted 0 B, measured " in remark for remark in remarks(both()))
