"""The report of a round: named statistics in a fixed order on the wire."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tacit
from tacit.strategies.local_sgd.round_report import (
    STATISTICS,
    RoundReport,
    check_period,
    mean_loss,
    period_on_wire,
)

VALUES = {"period": 8.0, "rate": 0.25, "loss": 1.5, "has_loss": 1.0, "squared_distance": 3.0}


@pytest.mark.parametrize(
    ("needs", "names"),
    [
        ({}, ("period",)),
        ({"rate": True}, ("period", "rate")),
        ({"loss": True}, ("period", "loss", "has_loss")),
        ({"rate": True, "squared_distance": True}, ("period", "rate", "squared_distance")),
        ({"rate": True, "loss": True, "squared_distance": True}, STATISTICS),
    ],
    ids=str,
)
def test_what_is_packed_comes_back_by_name(needs: dict[str, bool], names: tuple[str, ...]):
    report = RoundReport.of(**needs)
    packed = report.pack(VALUES)
    assert report.names == names
    assert packed == [VALUES[name] for name in names]
    assert report.unpack(packed) == {name: VALUES[name] for name in names}


def test_an_unknown_statistic_is_refused():
    with pytest.raises(ValueError, match=r"statistic='rat' is unknown; did you mean 'rate'\?"):
        RoundReport.of().pack({"period": 8.0, "rat": 0.1})
    with pytest.raises(ValueError, match="statistic='buffers' is unknown; known are has_loss, loss, period, rate"):
        RoundReport(("period", "buffers"))


def test_a_missing_statistic_is_refused():
    with pytest.raises(ValueError, match=r"must hold period, rate; add \['rate'\]"):
        RoundReport.of(rate=True).pack({"period": 8.0})


@pytest.mark.parametrize("names", [("rate", "period"), ("period", "period")])
def test_another_order_is_refused(names: tuple[str, ...]):
    with pytest.raises(ValueError, match="must be in the order period, rate, loss"):
        RoundReport(names)


def test_another_number_of_statistics_is_refused():
    with pytest.raises(ValueError, match="3 numbers came; a report has period, rate"):
        RoundReport.of(rate=True).unpack([8.0, 0.1, 2.0])


def test_the_mean_loss_is_over_ranks_that_have_one():
    """Two of three ranks have a loss, 1 and 2; the means over all ranks are 1 and 2/3."""
    assert mean_loss({"loss": 1.0, "has_loss": 2 / 3}) == pytest.approx(1.5)
    assert mean_loss({"loss": 0.0, "has_loss": 0.0}) is None
    assert mean_loss({"period": 8.0}) is None


@pytest.mark.parametrize("period", [1, 63, 64, 1000, 2**31])
@pytest.mark.parametrize("size", [2, 64])
def test_one_rank_with_another_period_is_found(period: int, size: int):
    worker = SimpleNamespace(rank=1, size=size)
    check_period(worker, period, period_on_wire(period))  # type: ignore[arg-type]
    others = (period_on_wire(period) * (size - 1) + period_on_wire(period + 1)) / size
    with pytest.raises(tacit.Disagreement, match="ranks disagree on the period"):
        check_period(worker, period, others)  # type: ignore[arg-type]
