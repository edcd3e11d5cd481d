"""A small disk for the checkpoints of a run, which a fault can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tacit.errors import TacitError

_BALLAST: Final = "ballast"
_PIECE: Final = 2**16


class SmallDisk:
    """A folder on a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Write until the disk is full."""
        with suppress(OSError), (self.folder / _BALLAST).open("wb", buffering=0) as file:
            while file.write(bytes(_PIECE)):
                pass

    def free(self) -> None:
        """Remove what ``fill`` wrote."""
        (self.folder / _BALLAST).unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[SmallDisk]:
    """Mount a file system in memory at ``folder``, and unmount it at the end; what is on it is lost."""
    if os.geteuid():
        raise TacitError("plans with fill mount a small disk, which needs root; remove these faults from the plan.")
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tacit-chaos", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TacitError(f"{' '.join(words)}: {done.stderr.strip()}; remove the faults of kind fill from the plan.")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
