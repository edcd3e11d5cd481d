"""Adaptive time-outs: how long to wait for other workers, chosen from the times observed so far."""

from __future__ import annotations

from typing import Final

_INITIAL_S: Final = 1800.0  # nothing is known yet: compilation, downloads, a first epoch without collectives
_MINIMUM_S: Final = 300.0
_FACTOR: Final = 20.0
_NOTICE_S: Final = 8.0
_NOTICE_FACTOR: Final = 3.0
_NOTICE_PART: Final = 0.25  # of the time-out


class AdaptiveTimeout:
    """Time-out that grows with the longest time between two collectives; at least five minutes.

    chosen_s: the user's fixed time-out; None: adaptive.
    """

    def __init__(self, chosen_s: float | None) -> None:
        self.chosen_s, self._longest_s, self._seen, self._last_s = chosen_s, 0.0, 0, 0.0

    @property
    def timeout_s(self) -> float:
        if self.chosen_s is not None:
            return self.chosen_s
        return _INITIAL_S if self._seen < 3 else max(_MINIMUM_S, _FACTOR * self._longest_s)

    def notice_s(self, longest_wait_s: float) -> float:
        """Return the wait after which a notice is due: well above all waits so far, and well below the time-out."""
        usual_s = max(self._longest_s, longest_wait_s)
        return min(max(_NOTICE_S, _NOTICE_FACTOR * usual_s), _NOTICE_PART * self.timeout_s)

    def start(self) -> None:
        """Forget the collectives of ``attach``: nothing is known yet about the time between two collectives."""
        self._longest_s, self._seen, self._last_s = 0.0, 0, 0.0

    def collective_done(self, now_s: float) -> None:
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s, self._seen = now_s, self._seen + 1
