"""Weights of ranks in a mean over ranks, and the one rule that recognises a weight without data.

0                  the rank's data has ended
SKIPPED_WEIGHT     a GradScaler skipped the step: the sum of all weights is not 0, so that the run does not end
samples / batch    samples behind the gradient, relative to the nominal batch; at least one sample in 2³⁰
"""

from __future__ import annotations

from typing import Final

SKIPPED_WEIGHT: Final = 2.0**-60
"""Weight of a step that a GradScaler skipped. It vanishes in a sum with any weight that has data."""

_LEAST_WEIGHT: Final = 2.0**-30
"""Least weight of a step with data. Sums of up to 2³⁰ skipped steps or ranks stay below it."""


def has_data(weight: float, steps: int = 1) -> bool:
    """Return whether ``weight``, the sum over ``steps`` steps, has data behind it; False for no steps."""
    return steps > 0 and weight >= _LEAST_WEIGHT * steps
