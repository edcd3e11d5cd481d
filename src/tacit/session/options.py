"""What the user says about a run beside its strategy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.errors import require
from tacit.session.logs import Log
from tacit.session.model.batch_norm import Calibration


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What happens to everything that is not a parameter, and where a run leaves its traces."""

    buffers: str = "average"
    optimizer_state: str = "keep"
    calibration: Calibration | None = None
    rescue: Path | None = None  # where survivors leave a checkpoint when a worker is lost
    log: str | Log | None = None

    def __post_init__(self) -> None:
        require(
            self.buffers != "recalibrate" or self.calibration is not None,
            'buffers="recalibrate" needs batches to measure on: calibration=… at tacit.attach.',
        )
