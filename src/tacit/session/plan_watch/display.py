"""Where the lines about a run and its plan are shown: the terminal and the log ``tacit``."""

from __future__ import annotations

import logging
import sys
from typing import Final, Protocol

_logger: Final = logging.getLogger("tacit")


class Display(Protocol):
    """Shows lines on rank 0. ``every_s``: seconds between two lines of progress; None: none are wanted."""

    @property
    def every_s(self) -> float | None: ...

    def progress(self, text: str) -> None: ...

    def drift(self, text: str) -> None: ...


class LogDisplay:
    """Progress on standard error if it is a terminal, otherwise in the log at level INFO; drifts as warnings."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    @property
    def every_s(self) -> float | None:
        return 10.0 if self._is_terminal or _logger.isEnabledFor(logging.INFO) else None

    def progress(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"{text}\n")
        else:
            _logger.info("%s", text)

    def drift(self, text: str) -> None:
        _logger.warning("%s", text)
