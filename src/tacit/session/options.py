"""Options of a session other than its strategy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.errors import require
from tacit.session.model.batch_norm import Calibration
from tacit.session.model.extra_state import MomentsEvery
from tacit.session.planned import Planned
from tacit.session.probing import Probe
from tacit.session.recording.logs import Log


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How buffers and optimizer state are treated, where checkpoints and logs are written, what rounds carry."""

    buffers: str = "average"
    optimizer_state: str = "keep"
    moments_every: MomentsEvery = None  # rounds between two averages of the optimizer's moments
    calibration: Calibration | None = None
    rescue_folder: Path | None = None  # for the checkpoint of the remaining workers when one is lost
    progress_folder: Path | None = None  # in which each worker leaves its progress
    log: str | Log | None = None
    live: bool = False  # whether the ranks' times travel with rounds
    plan: Planned | None = None  # that this run follows
    probe: Probe | None = None  # of the script whose session this is

    def __post_init__(self) -> None:
        require(
            self.buffers != "recalibrate" or self.calibration is not None,
            'buffers="recalibrate" needs batches to measure on; give calibration=… to tacit.attach.',
        )
