"""Files of checkpoints: shards and manifests, written so that a crash or a full disk leaves a valid checkpoint.

Order of a checkpoint, each written to the disk before the next: the shards, their folder and those above it, the
manifest of the previous checkpoint, the manifest. Only then are older checkpoints removed. The last two remain.
"""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import torch

from tacit.errors import TacitError
from tacit.record.files import replacing, sync_folder, write_text

FORMAT: Final = 1
NOT_FINITE: Final = "its model is not finite"
"""The reason for which a part is not written; a checkpoint without it is no failure of the disk."""
_MANIFEST: Final = "manifest.json"
_PREVIOUS: Final = "previous.json"

Shard = dict[str, Any]


class _File:
    """A file that keeps the error of a failed write: torch replaces it by an error about its format."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.error = file, None  # type: IO[bytes], OSError | None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def place_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step``."""
    return folder / f"step-{step:08d}"


def server_file(shard: int) -> str:
    """Return the name of the file of a server, or of a shard of it."""
    return f"server-{shard}.pt" if shard else "server.pt"


def save_shard(path: Path, shard: Shard) -> str:
    """Write a file completely or not at all; return the error, or an empty text."""
    file: _File | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=True) as part, part.open("wb") as raw:
            file = _File(raw)
            torch.save(shard, cast(IO[bytes], file))
    except (OSError, RuntimeError) as error:
        return _text_of(file.error if file is not None and file.error is not None else error)
    return ""


def save_step(place: Path, rank: int, step: int) -> str:
    """Write the step of ``rank`` for the rank that publishes; return the error, or an empty text."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_text(place / f"rank-{rank}.step", f"{step}")
    except OSError as error:
        return _text_of(error)
    return ""


def publish(folder: Path, place: Path, step: int, ranks: list[int], size: int, *, strategy: str = "") -> str:
    """Make ``place`` the valid checkpoint and keep the one before; return the error, or an empty text."""
    manifest = {"format": FORMAT, "step": step, "place": place.name, "size": size, "ranks": ranks, "strategy": strategy}
    try:
        sync_folder(place)
        sync_folder(folder)
        before = current_place(folder)
        if before is None:  # the folder itself may be new, and folders above it
            _sync_above(folder)
        if before not in (None, place.name):
            write_text(folder / _PREVIOUS, (folder / _MANIFEST).read_text(), sync=True)
        write_text(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n", sync=True)
    except OSError as error:
        return _text_of(error)
    kept = {place.name, before if before != place.name else _place_in(folder / _PREVIOUS)}
    for other in folder.glob("step-*"):
        if other.name not in kept:
            shutil.rmtree(other, ignore_errors=True)
    return ""


def _sync_above(folder: Path) -> None:
    for above in folder.resolve().parents:
        with suppress(OSError):  # not ours to read: then it is not new either
            sync_folder(above)


def discard(folder: Path, place: Path) -> None:
    """Remove what was written to ``place``, unless a valid checkpoint is there."""
    if place.name not in (current_place(folder), _place_in(folder / _PREVIOUS)):
        shutil.rmtree(place, ignore_errors=True)


def current_place(folder: Path) -> str | None:
    """Return the name of the folder of the valid checkpoint; None without a checkpoint."""
    return _place_in(folder / _MANIFEST)


def _place_in(manifest: Path) -> str | None:
    try:
        return str(json.loads(manifest.read_text())["place"])
    except (OSError, ValueError, KeyError):
        return None


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of the valid checkpoint."""
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        raise TacitError(f"{folder} holds no checkpoint: it has no {_MANIFEST}.") from None
    except json.JSONDecodeError as error:
        raise TacitError(f"{folder / _MANIFEST} cannot be read: {error}.") from None
    if manifest.get("format") != FORMAT:
        raise TacitError(f"{folder} was written by another version of tacit (format {manifest.get('format')}).")
    return manifest


def load_shard(folder: Path, name: str) -> Shard:
    """Return a shard of the valid checkpoint."""
    path = folder / manifest_of(folder)["place"] / name
    try:
        shard: Shard = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TacitError(
            f"{path} is missing; every rank must see all shards: use a folder that all machines share, or copy all "
            f"shards into one."
        ) from None
    except Exception as error:
        way_out = f" To resume from the checkpoint before it, replace {_MANIFEST} by {_PREVIOUS}."
        raise TacitError(
            f"{path} cannot be read: {error}.{way_out if (folder / _PREVIOUS).exists() else ''}"
        ) from error
    return shard


def _text_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.strerror})"
    return f"{getattr(error, 'strerror', None) or error}"
