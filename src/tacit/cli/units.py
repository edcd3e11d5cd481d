"""Parsers for times, rates, seeds and learning rates on the command line: ``0.1ms``, ``1Gbit/s``, ``0,3,7``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

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


def seeds(text: str) -> list[int]:
    """Return the seeds of ``3`` (0, 1 and 2), or of the list ``4,7,9``."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"seeds={text!r} must be a number of seeds (3) or a list of seeds (4,7,9).") from None
    return list(range(numbers[0])) if len(numbers) == 1 and "," not in text else numbers


def rates(text: str) -> list[float]:
    """Return the learning rates of ``0.1`` or of the list ``0.1,0.3``."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"lr={text!r} must be a learning rate (0.1) or a list of rates (0.1,0.3).") from None


def hosts(text: str) -> int | list[int]:
    """Return the number of hosts of ``2``, or the list of ``0,0,1,1``."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
        return numbers if "," in text else numbers[0]
    except (ValueError, IndexError):
        raise ValueError(f"hosts={text!r} must be a number of hosts (2) or each rank's host (0,0,1,1).") from None


def assignment(text: str) -> tuple[str, float]:
    """Return the rank and the factor of ``3=0.33``."""
    rank, sign, factor = text.partition("=")
    try:
        if not sign:
            raise ValueError
        return str(int(rank)), float(factor)
    except ValueError:
        raise ValueError(f"speed={text!r} must be RANK=FACTOR; 3=0.33 runs worker 3 at a third of the speed.") from None


def _read(text: str, units: Mapping[str, float], wanted: str, shown: str | None = None) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{shown or text!r} must be {wanted}.")
    return float(match[1]) * units[match[2]]
