"""The folder of a run that is followed: what its files say now."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tacit.errors import TacitError
from tacit.record.progress import FOLDER, progress_file
from tacit.record.run import Run
from tacit.watch.progress_reader import ProgressFile, WorkerProgress, progress_of

_MOST_WORKERS: Final = 4096


class FollowedRun:
    """Reads one folder again and again. ``workers`` is empty until a run has begun there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[WorkerProgress] = []
        self.settings: Mapping[str, Any] = {}  # of run.toml
        self.run: Run | None = None  # when it has ended and was saved
        self._files: list[ProgressFile] = []
        self._loaded: float | None = None  # time of the run.json that ``run`` was loaded from

    def read(self) -> None:
        """Read what is new."""
        self._read_files()
        self._load_run()
        if self.run is None:
            found = [file.worker for file in self._files if file.worker.header]
            self.workers = found if found and found[0].rank == 0 else []
        if not self.settings and self.workers:
            self.settings = _table(self.folder / "run.toml")

    def _read_files(self) -> None:
        if not self._files and progress_file(self.folder, 0).exists():
            self._files = [ProgressFile(progress_file(self.folder, 0), 0)]
        for file in self._files:
            file.read()
        if self._files and "workers" in self._files[0].worker.header:
            size = min(_MOST_WORKERS, int(self._files[0].worker.header["workers"]))
            if size != len(self._files):
                others = [ProgressFile(progress_file(self.folder, rank), rank) for rank in range(1, size)]
                self._files[1:] = others
                for file in others:
                    file.read()

    def _load_run(self) -> None:
        """Load the run when its process has saved it; a run that is resumed later is in progress again."""
        try:
            saved = (self.folder / "run.json").stat().st_mtime
        except OSError:
            saved = None
        is_running = bool(self._files) and self._files[0].worker.status is None and bool(self._files[0].worker.header)
        if saved is None or is_running:
            self.run = self._loaded = None
            return
        if saved != self._loaded:
            try:
                self.run = Run.load(self.folder)
            except (TacitError, OSError, ValueError, KeyError):  # it is being written, or is no run
                return
            self._loaded, self.settings = saved, self.run.config
            self.workers = progress_of(self.run)

    @property
    def state(self) -> str:
        """What the run is doing: "waiting", "running", "finished", "interrupted" or "failed: …"."""
        if self.run is not None:
            return self.run.status
        if not self.workers:
            return "waiting"
        return self.workers[0].status or "running"

    @property
    def silent_s(self) -> float:
        """Seconds since a worker has last written; 0 for a run that has ended."""
        at = max((worker.at for worker in self.workers), default=0.0)
        return max(0.0, time.time() - at) if self.state == "running" else 0.0

    @property
    def what_is_missing(self) -> str:
        """Why there is nothing to show yet, as a sentence; empty if there is."""
        if self.workers:
            return ""
        if not self.folder.exists():
            return f"{self.folder} does not exist yet. This page waits for a run to begin there."
        if (self.folder / "compare.toml").exists():
            return (
                f"{self.folder} is a comparison, not a run. Open its report.html, or watch one of the folders in "
                f"{self.folder / 'runs'}."
            )
        return (
            f"{self.folder} has no {FOLDER} folder yet. tacit train writes one; in a script, give "
            f'tacit.attach(…, progress_folder="{self.folder}"). This page waits for it.'
        )


def _table(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
