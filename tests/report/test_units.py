"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tacit.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2.5e-5, "25.0 µs"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (59.94, "59.9 s"),
        (119, "119 s"),
        (150, "2.50 min"),
        (9000, "2.50 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (123_456_789, "123 MB"), (1.2e9, "1.20 GB"), (999_999, "1.00 MB")],
)
def test_size(value: float, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14, "3.1×"), (0.5, "0.5×"), (0.123, "0.123×"), (1234, "1,234×"), (99.7, "100×"), (1.0, "1.0×")],
)
def test_ratio(value: float, text: str) -> None:
    assert units.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0312, "0.03120"), (0.0, "0.000"), (1.0, "1.000"), (1.5e-7, "1.5e-7"), (-2.5, "-2.500"), (3e30, "3e30")],
)
def test_loss(value: float, text: str) -> None:
    assert units.loss(value) == text


def test_long_lists_are_abbreviated() -> None:
    times = ", ".join(f"{0.001 * i:.4f}" for i in range(1, 21))
    text = f"Cluster(workers=2, compute=Recorded(times_s=[{times}]), speed={{0: 0.9}})"
    assert units.abbreviated(text) == "Cluster(workers=2, compute=Recorded(times_s=[20 numbers]), speed={0: 0.9})"
    assert units.abbreviated("PeriodList([4, 8, 16])") == "PeriodList([4, 8, 16])"


def test_counts_and_shares() -> None:
    assert [units.count(v) for v in (27, 26.5, 1234.6)] == ["27", "26.5", "1,235"]
    assert [units.share(v) for v in (0.0, 0.031, 0.57)] == ["0 %", "3.1 %", "57 %"]


def test_a_range_names_its_unit_once_and_vanishes_when_both_ends_read_the_same() -> None:
    assert units.between(11.9, 12.6, units.seconds) == "11.9–12.6 s"
    assert units.between(0.5, 2.0, units.seconds) == "500 ms–2.00 s"
    assert units.between(2.9, 3.3, units.ratio) == "2.9–3.3×"
    assert units.between(5.0, 5.0001, units.seconds) == ""
