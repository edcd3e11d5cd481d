"""How long to wait for the others: chosen from how long they have taken so far, unless the user says."""

from __future__ import annotations

from typing import Final

_AT_FIRST_S: Final = 1800.0  # nothing is known: compilation, downloads, a first epoch without rounds
_LEAST_S: Final = 300.0
_TIMES: Final = 20.0
_NOTICE_S: Final = 8.0
_NOTICE_TIMES: Final = 3.0
_NOTICE_PART: Final = 0.25  # of the time-out


class AdaptiveTimeout:
    """Grows with the longest time between two collectives; never shrinks below five minutes by itself."""

    def __init__(self, wanted_s: float | None) -> None:
        self._wanted_s, self._longest_s, self._seen, self._last_s = wanted_s, 0.0, 0, 0.0

    @property
    def timeout_s(self) -> float:
        if self._wanted_s is not None:
            return self._wanted_s
        return _AT_FIRST_S if self._seen < 3 else max(_LEAST_S, _TIMES * self._longest_s)

    def notice_s(self, longest_wait_s: float) -> float:
        """Return after which wait to say where workers are: well above the waits and pauses seen so far, and well below
        the time-out.
        """
        usual_s = max(self._longest_s, longest_wait_s)
        return min(max(_NOTICE_S, _NOTICE_TIMES * usual_s), _NOTICE_PART * self.timeout_s)

    def collective_done(self, now_s: float) -> None:
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s, self._seen = now_s, self._seen + 1
