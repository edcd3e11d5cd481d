"""Strategies that fail in their own ways, which worker processes import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from tacit import LocalSGD, Worker


@dataclass(frozen=True, kw_only=True)
class Killed(LocalSGD):
    """A strategy whose process is killed in the first step, as the system does for lack of memory."""

    def before_step(self, worker: Worker, state: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Faulty(LocalSGD):
    """A strategy with a defect."""

    def before_step(self, worker: Worker, state: Any) -> None:
        raise ZeroDivisionError("a defect in the strategy")
