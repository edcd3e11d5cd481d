"""Parsers for times and rates with units: ``0.1ms``, ``1Gbit/s``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

_QUANTITY: Final = re.compile(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)
_SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_BITS: Final = {f"{prefix}{word}": factor / 8 for prefix, factor in _PREFIXES.items() for word in ("bit", "bits", "b")}
_BYTES: Final = {f"{prefix}{word}": factor for prefix, factor in _PREFIXES.items() for word in ("byte", "bytes")}


def seconds(text: str) -> float:
    """Return ``0.1ms``, ``20us`` or ``1.5`` (seconds) in seconds."""
    return _read(text, _SECONDS, "a time such as 0.1ms, 20us or 1.5s")


def bytes_per_second(text: str) -> float:
    """Return ``1Gbit/s``, ``100MB/s`` or ``125e6`` in bytes per second (b is a bit, B a byte); ``inf`` is unlimited."""
    if text.strip() == "inf":
        return math.inf
    plain = re.sub(r"(?<=[0-9kKMGTi ])B$", "byte", re.sub(r"(/s|ps)$", "", text.strip()))
    units = {**_BITS, **_BYTES, "": 1.0}
    return _read(plain.lower(), units, "a rate such as 1Gbit/s, 100MB/s or 125e6 (bytes per second)", text)


def _read(text: str, units: Mapping[str, float], wanted: str, shown: str | None = None) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{shown or text!r} must be {wanted}.")
    return float(match[1]) * units[match[2]]


_UNITS_IN_TABLES: Final[Mapping[str, Any]] = {"bandwidth_bytes_per_s": bytes_per_second, "latency_s": seconds}

SHORT_NAMES: Final = ("bandwidth", "latency", "host_bandwidth", "host_latency")
"""Names for the same settings as texts with units."""


def with_units(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a cluster with texts such as ``bandwidth = "20Mbit/s"`` as numbers.

    ``bandwidth``, ``latency``, ``host_bandwidth`` and ``host_latency`` are short names for texts.
    """
    found = dict(table)
    for prefix in ("", "host_"):
        for whole, read in _UNITS_IN_TABLES.items():
            short, name = f"{prefix}{whole.partition('_')[0]}", f"{prefix}{whole}"
            if short in found:
                if name in found:
                    raise ValueError(f"{short} and {name} are the same setting; give one of them.")
                found[name] = found.pop(short)
                if not isinstance(found[name], str):
                    raise ValueError(f"{short}={found[name]!r} must be a text with a unit, or write {name}.")
            if isinstance(found.get(name), str):
                found[name] = read(found[name])
    return found
