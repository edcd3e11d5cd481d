"""What the work of hooks costs in a simulation: encoding, decoding, flattening, dividing, a server's update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from tacit.errors import nearest, require

Cost = float | tuple[float, float]
"""Seconds per number; or a pair of these and of seconds that each call takes besides."""
WORK: Final = ("encode", "decode", "flatten", "divide", "update")
"""The work that has a cost. A name may be followed by a compressor: "encode TopK"."""


def check_costs(costs: Mapping[str, Cost]) -> None:
    """Raise unless ``costs`` maps known work to seconds."""
    for name, cost in costs.items():
        work, *compressor = name.split() if isinstance(name, str) and name.strip() else [str(name)]
        require(work in WORK, f"costs={{{name!r}: {cost}}} names unknown work{nearest(work, WORK)}")
        require(
            len(compressor) <= 1 and (not compressor or work in WORK[:2]),
            f"costs={{{name!r}: {cost}}} must name work, or encode or decode and the class of a compressor; "
            f'write "encode" or "encode TopK".',
        )
        parts = cost if isinstance(cost, tuple | list) else (cost,)
        require(
            0 < len(parts) <= 2 and all(isinstance(part, int | float) and 0 <= part < math.inf for part in parts),
            f"costs={{{name!r}: {cost}}} must be seconds per number, or a pair with the seconds of each call: "
            f"(2e-9, 1e-4); both at least 0 and finite.",
        )


def cost_s(costs: Mapping[str, Cost], what: str, numbers: int) -> float:
    """Return the seconds of ``what`` on ``numbers`` numbers: by its full name, else by its first word, else 0."""
    cost = costs.get(what)
    if cost is None:
        cost = costs.get(what.partition(" ")[0], 0.0)
    per_number_s, constant_s = (*cost, 0.0)[:2] if isinstance(cost, tuple | list) else (cost, 0.0)
    return per_number_s * numbers + constant_s
