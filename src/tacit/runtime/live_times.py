"""Times that travel with rounds while a run is in progress: two numbers per rank, in the messages that are sent anyway.

all-reduce              two places for each rank behind the weight; each rank fills its own, and the sum has them all
all-gather, all-to-all  16 bytes behind each message
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from torch import Tensor

from tacit.errors import BadMessage
from tacit.session.backend import LiveRound

if TYPE_CHECKING:
    from tacit.runtime.step_context import ProcessStep

_NUMBERS: Final = 2
_TAIL: Final = struct.Struct("<2d")


class LiveTimes:
    """The compute and hook seconds of all ranks since the round before. ``latest``: None before the first round."""

    tail_bytes = _TAIL.size

    def __init__(self, step: ProcessStep, rank: int, size: int) -> None:
        self._step, self._rank = step, rank
        self._taken = (0.0, 0.0)
        self._taken_steps = self._steps = 0
        self.places = _NUMBERS * size
        self.latest: LiveRound | None = None

    def _take(self) -> tuple[float, float]:
        """Return this rank's seconds since the previous call."""
        step, (compute_s, hook_s) = self._step, self._taken
        self._taken = step.compute_s, step.hook_s
        self._steps, self._taken_steps = step.computed - self._taken_steps, step.computed
        return step.compute_s - compute_s, step.hook_s - hook_s

    def fill(self, places: Tensor) -> None:
        """Write this rank's seconds into its places."""
        places.zero_()
        begin = _NUMBERS * self._rank
        places[begin : begin + _NUMBERS] = places.new_tensor(self._take())

    def read(self, places: Tensor) -> None:
        """Keep the sum over ranks of what ``fill`` wrote."""
        numbers = places.tolist()
        self._keep(numbers[::_NUMBERS], numbers[1::_NUMBERS])

    def tail(self) -> bytes:
        """Return this rank's seconds as bytes, to be sent behind a message."""
        return _TAIL.pack(*self._take())

    def read_tails(self, received: Sequence[bytes]) -> list[bytes]:
        """Keep the tails of all ranks' messages; return the messages without them."""
        if any(len(part) < _TAIL.size for part in received):
            raise BadMessage(f"a message came without the {_TAIL.size} bytes of live=True behind it.")
        compute_s, hook_s = zip(*(_TAIL.unpack(part[-_TAIL.size :]) for part in received), strict=True)
        self._keep(compute_s, hook_s)
        return [part[: -_TAIL.size] for part in received]

    def _keep(self, compute_s: Sequence[float], hook_s: Sequence[float]) -> None:
        latest, steps = self.latest, self._steps
        if not steps and latest is not None:  # the second exchange of a round: add to what the first one brought
            steps = latest.steps
            compute_s = [a + b for a, b in zip(latest.compute_s, compute_s, strict=True)]
            hook_s = [a + b for a, b in zip(latest.hook_s, hook_s, strict=True)]
        self.latest = LiveRound(steps, tuple(compute_s), tuple(hook_s))
