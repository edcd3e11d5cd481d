"""Number of local steps between two exchanges: fixed, or drawn from a geometric distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.core.specs import Spec
from tacit.errors import require


@dataclass(frozen=True, kw_only=True)
class Geometric(Spec):
    """A geometric number of local steps, at least 1, with the given ``mean``, as in SwarmSGD's theory."""

    mean: float

    def __post_init__(self) -> None:
        require(
            isinstance(self.mean, int | float) and 1 <= self.mean < 2**31,
            f"mean={self.mean} must be a number of steps, at least 1.",
        )


def check_local_steps(local_steps: int | Geometric) -> None:
    """Raise unless ``local_steps`` is a whole number, at least 1, or a ``Geometric``."""
    is_number = isinstance(local_steps, int) and not isinstance(local_steps, bool) and local_steps >= 1
    require(
        is_number or isinstance(local_steps, Geometric),
        f"local_steps={local_steps!r} must be a whole number, at least 1, or Geometric(mean=4).",
    )


def draw_steps(local_steps: int | Geometric, random: np.random.Generator) -> int:
    """Return the number of steps until the next exchange."""
    return local_steps if isinstance(local_steps, int) else int(random.geometric(1 / local_steps.mean))


def mean_steps(local_steps: int | Geometric) -> float:
    """Return the mean number of steps between exchanges."""
    return local_steps if isinstance(local_steps, int) else local_steps.mean
