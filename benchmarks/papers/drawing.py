"""Curves as a small SVG, so that a figure can lie beside the numbers it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 520, 320, 64, 44, 30
COLOURS = (
    *("#777777", "#d1495b", "#1f77b4", "#2a9d5c", "#b07aa1"),
    *("#e08e1b", "#17becf", "#8c564b", "#5c5cff", "#9a9a00"),
)


@dataclass(frozen=True)
class Curve:
    """One line; ``kind`` decides its colour, the strong one of a kind stands out and is named."""

    kind: str
    name: str
    x: Sequence[float]
    y: Sequence[float]
    is_strong: bool = False


def draw(path: Path, panels: Mapping[str, Sequence[Curve]], x_label: Mapping[str, str], floor: float) -> None:
    """Write panels side by side, two in a row, both axes logarithmic; a curve ends where it falls below ``floor``."""
    kinds = list(dict.fromkeys(curve.kind for curves in panels.values() for curve in curves))
    rows = (len(panels) + 1) // 2
    width = min(2, len(panels)) * WIDTH + 40  # for the names of curves
    size = f'width="{width}" height="{rows * HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for place, (title, curves) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({place % 2 * WIDTH},{place // 2 * HEIGHT})">')
        parts += [*_panel(title, curves, x_label[title], floor, kinds), "</g>"]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(title: str, curves: Sequence[Curve], x_label: str, floor: float, kinds: list[str]) -> list[str]:
    finite = [(x, max(y, floor)) for curve in curves for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    x0, x1 = (f(math.log10(x) for x, _ in finite) for f in (min, max))
    y0, y1 = math.log10(floor), min(2.0, math.ceil(max(math.log10(y) for _, y in finite)))

    def at(x: float, y: float) -> str:
        across = LEFT + (math.log10(x) - x0) / max(x1 - x0, 1e-9) * (WIDTH - LEFT - 90)
        down = ABOVE + (y1 - min(y1, math.log10(max(y, floor)))) / (y1 - y0) * (HEIGHT - ABOVE - BELOW)
        return f"{across:.1f},{down:.1f}"

    parts = [
        f'<text x="{LEFT}" y="18" font-weight="bold">{title}</text><text x="{LEFT}" y="{HEIGHT - 8}">{x_label}</text>'
    ]
    for value, label in _ticks(y0, y1, 2):
        down = at(10**x0, value).partition(",")[2]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 90}" y1="{down}" y2="{down}" stroke="#e5e5e5"/><text x="{LEFT - 34}" y="{down}">{label}</text>'
        )
    for value, label in _ticks(x0, x1, 1):
        across = at(value, floor).partition(",")[0]
        parts.append(f'<text x="{across}" y="{HEIGHT - BELOW + 16}">{label}</text>')
    names: list[tuple[float, float, str, str]] = []
    for curve in sorted(curves, key=lambda c: c.is_strong):
        drawn = list(zip(curve.x, curve.y, strict=True))
        end = next((i + 1 for i, (_, y) in enumerate(drawn) if y < floor), len(drawn))
        points = [at(x, y) for x, y in drawn[:end] if math.isfinite(y)]
        number = kinds.index(curve.kind)
        colour, width, opacity = COLOURS[number], *((2, 1.0) if curve.is_strong else (1, 0.3))
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}" points="{" ".join(points)}"/>'
        )
        if curve.is_strong:
            across, _, down = points[-1].partition(",")
            names.append((float(down), float(across), colour, curve.name))
    lowest = math.inf
    for down_px, across_px, colour, name in sorted(names, reverse=True):  # from the bottom up, none over another
        lowest = min(down_px + 4, lowest - 12)
        parts.append(f'<text x="{across_px + 4:.0f}" y="{lowest:.0f}" fill="{colour}">{name}</text>')
    return parts


def _ticks(low: float, high: float, every: int) -> list[tuple[float, str]]:
    """Return values to mark between two powers of ten, with their labels: powers, or over few of them 1, 2 and 5 of
    each.
    """
    if high - low > 2.5:
        return [(10.0**power, f"1e{power}") for power in range(math.ceil(low), math.floor(high) + 1, every)]
    values = (digit * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for digit in (1, 2, 5))
    return [(value, f"{value:g}") for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
