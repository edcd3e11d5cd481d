"""Numbers as text: three or four significant digits and a unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_TIMES: Final = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
_SIZES: Final = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


def seconds(value: float) -> str:
    """Return a duration in µs, ms, s, min or h; minutes and hours from two on."""
    magnitude = abs(value)
    if magnitude == 0:
        return "0 s"
    chosen = _TIMES[0]
    for unit in _TIMES:
        if magnitude >= unit[0] * (2 if unit[0] > 1 else 1) * 0.9995:  # 0.9996 s prints as 1.00 s, not as 1,000 ms
            chosen = unit
    return f"{figure(value / chosen[0])} {chosen[1]}"


def size(value: float) -> str:
    """Return a number of bytes in decimal units, as network bandwidths use."""
    chosen = _SIZES[0]
    for unit in _SIZES:
        if abs(value) >= unit[0] * 0.9995:
            chosen = unit
    scaled = value / chosen[0]
    return f"{count(value) if chosen[1] == 'B' else figure(scaled)} {chosen[1]}"


def count(value: float) -> str:
    """Return a count; a mean of counts keeps one digit."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.1f}"


def ratio(value: float) -> str:
    """Return «3.1×»: how many times."""
    return f"{value:,.0f}×" if value >= 99.5 else f"{value:.3g}×" if value < 0.995 else f"{value:.1f}×"


def share(value: float) -> str:
    """Return a share of one as a percentage."""
    percent = 100 * value
    return f"{percent:.0f} %" if percent == 0 or percent >= 9.95 else f"{percent:.1f} %"


def loss(value: float) -> str:
    """Return a loss or metric with four significant digits."""
    return _tidy(f"{value:.4g}") if value and not 1e-3 <= abs(value) < 1e5 else f"{value:#.4g}".rstrip(".")


def target(value: float) -> str:
    """Return a target loss with at most six significant digits."""
    return _tidy(f"{value:.6g}")


def figure(value: float) -> str:
    """Return a number with three significant digits, and with thousands separators rather than exponents."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}" if magnitude < 1e6 else _tidy(f"{value:.3g}")
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}" if magnitude >= 0.9995 else _tidy(f"{value:.3g}")


def between(low: float, high: float, show: Callable[[float], str]) -> str:
    """Return «11.9–12.6 s», the unit once, or nothing when both ends read the same."""
    first, last = show(low), show(high)
    if first == last:
        return ""
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(' ' + unit) else first.removesuffix('×')}–{last}"


def abbreviated(text: str) -> str:
    """Return a specification with each long list, such as measured step times, replaced by its length."""
    return re.sub(r"\[([^\[\]]{60,})\]", lambda found: f"[{found[1].count(',') + 1} numbers]", text)


def _tidy(text: str) -> str:
    mantissa, exponent_mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent_mark else text
