"""Units and TOML: what people type, and what is written for them."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from tacit.cli import units
from tacit.record.files import toml_text


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1ms", 1e-4), ("20us", 2e-5), ("20 µs", 2e-5), ("1.5", 1.5), ("1e-3s", 1e-3), ("2 min", 120.0), (".5s", 0.5)],
)
def test_times(text: str, value: float) -> None:
    assert units.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gbit/s", 125e6),
        ("1gbit/s", 125e6),
        ("100Mbps", 12.5e6),
        ("100Mb/s", 12.5e6),
        ("100MB/s", 100e6),
        ("100 MiB/s", 100 * 2**20),
        ("3B/s", 3.0),
        ("10Gbit", 1.25e9),
        ("125e6", 125e6),
        ("inf", math.inf),
    ],
)
def test_rates_in_bytes_per_second(text: str, value: float) -> None:
    assert units.bytes_per_second(text) == value


@pytest.mark.parametrize("text", ["", "fast", "1.2.3s", "-1s", "1 light-year", "nan", "1,5s"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    for read in (units.seconds, units.bytes_per_second):
        with pytest.raises(ValueError, match="must be a"):
            read(text)


def test_seeds_are_a_number_or_a_list() -> None:
    assert units.seeds("3") == [0, 1, 2]
    assert units.seeds("4,7, 9") == [4, 7, 9]
    assert units.seeds("4,") == [4]


scalars = draw.booleans() | draw.integers(-(2**63), 2**63 - 1) | draw.floats(allow_nan=False) | draw.text()
values = scalars | draw.lists(scalars) | draw.dictionaries(draw.text(), scalars)
tables = draw.dictionaries(draw.text(), values | draw.dictionaries(draw.text(), values))


@given(tables)
def test_what_is_written_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(table)) == table
