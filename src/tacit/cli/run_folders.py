"""Output folders: a folder is created and checked before anything runs."""

from __future__ import annotations

import datetime
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit.errors import FolderExists, TacitError
from tacit.record import step_times

_OURS = (
    "report.html",
    "compare.json",
    "compare.toml",
    "runs",
    "run.json",
    "run.toml",
    "history.json",
    "parameters.npy",
    "trace.npz",
    "checkpoint",
    "tensorboard",
    "logs",
    "progress",
    "server.pt",
    step_times.PATTERN,
)
"""Names and patterns of what tacit writes."""


_LONGEST = 80
"""Longest name of a strategy in the name of a run folder, in characters."""


def claim(folder: Path | None, *, command: str, force: bool) -> Path:
    """Return the output folder, created and writable.

    A folder that is not empty raises ``FolderExists`` unless ``force``, which removes results from it.
    """
    target = folder if folder is not None else fresh(command)
    if target.exists() and not target.is_dir():
        raise FolderExists(target, "it is a file; choose another --out.")
    if target.exists() and any(target.iterdir()):
        if not force:
            is_comparison = command == "compare" and (target / "compare.toml").exists()
            resume = f"continue its comparison with --resume {target}, " if is_comparison else ""
            raise FolderExists(target, f"{resume}choose another --out, or replace its results with --force.")
        _empty(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TacitError(f"the folder {target} cannot be created: {error.strerror}; choose another --out.") from error
    _check_writable(target)
    return target


@contextmanager
def removed_if_unused(folder: Path) -> Iterator[None]:
    """Remove the output folder if an error leaves it empty, so that the corrected command can use it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty
            folder.rmdir()
        raise


def writable(path: Path) -> Path:
    """Return ``path`` after checking that a file can be written there."""
    if path.is_dir():
        raise TacitError(f"{path} must be a file, and it is a folder; give the name of a file.")
    _check_writable(path.parent)
    return path


def run_name(strategy: str, seed: int, lr: float | None = None) -> str:
    """Return the name of the folder for the run of ``strategy`` with ``seed``; a long name ends with a hash.

    lr: the learning rate, where a comparison has several.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", strategy).strip("-")
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]}-{zlib.crc32(strategy.encode()):08x}"
    return f"{words}-{seed}" if lr is None else f"{words}-lr{lr!r}-{seed}"


def _check_writable(folder: Path) -> None:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable"):
            pass
    except OSError as error:
        raise TacitError(f"the folder {folder} is not writable: {error.strerror}; choose another.") from error


def fresh(command: str) -> Path:
    """Return runs/<command>-<date>-<time>, with a number if that folder exists."""
    stem = f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    candidates = (Path("runs") / (stem if n == 0 else f"{stem}-{n}") for n in range(1000))
    return next(path for path in candidates if not path.exists())


def _empty(folder: Path) -> None:
    """Remove results from ``folder``; raise ``FolderExists`` if it holds files that tacit did not write."""
    ours = {path for pattern in _OURS for path in folder.glob(pattern)}
    foreign = sorted(path.name for path in folder.iterdir() if path not in ours and not path.name.startswith("."))
    if foreign:
        shown = ", ".join(foreign[:3])
        raise FolderExists(
            folder, f"--force replaces only results of tacit, and the folder also holds {shown}; choose another --out."
        )
    for path in ours:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
