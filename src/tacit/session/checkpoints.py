"""Checkpoints of a run: one shard per rank, and a manifest that is renamed into place last.

    folder/manifest.json            the complete step, the number of workers that wrote it, its shards
    folder/step-00000120/rank-0.pt  model, optimizer, session and random state of one rank

Only the manifest makes a checkpoint valid: while one is being written, the previous one remains. Shards hold tensors,
numbers and text; they are read with ``weights_only=True``, which unpickles no code.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.record.files import replacing, write_text
from tacit.session.backend import SessionBackend

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_SERVER: Final = "server.pt"
_SHARDS_TIMEOUT_S: Final = 10.0

Shard = dict[str, Any]


def write(folder: Path, backend: SessionBackend, shard: Shard, step: int) -> Path:
    """Write this rank's shard, wait for those of all ranks, and make the checkpoint the valid one. Collective."""
    place = _step_folder(folder, step)
    failure = _save(place / f"rank-{backend.rank}.pt", shard)
    failures = [one.decode() for one in backend.all_gather(failure.encode())]
    ranks = list(backend.live_ranks)
    for rank, one in zip(ranks, failures, strict=True):
        if one:
            raise TacitError(
                f"rank {rank} could not write its checkpoint: {one}; the previous checkpoint is untouched."
            )
    if backend.rank == ranks[0]:
        _publish(folder, place, step, ranks, backend.size)
    backend.all_gather(b"published")
    return place


def write_surviving(
    folder: Path, rank: int, alive: Sequence[int], shard: Shard, step: int, failure_name: str | None
) -> Path:
    """Write this rank's shard without collectives; the first of the ranks in ``alive`` waits for the others' files.

    Such a checkpoint is never complete: a run resumes from its mean model, which replaces the round that failed.
    failure_name: equal on all ranks. Their steps may differ, and the checkpoint has the smallest. None: the ranks
    cannot communicate, and the checkpoint holds those with the step of the first rank.
    """
    place = folder / f"step-{failure_name or f'{step:08d}'}.rescued"
    failure = _save_step(place, rank, step) or _save(place / f"rank-{rank}.pt", shard)
    if failure:
        raise TacitError(f"rank {rank} could not write its checkpoint: {failure}.")
    if rank == min(alive):
        until = time.monotonic() + _SHARDS_TIMEOUT_S
        while not all((place / f"rank-{other}.pt").exists() for other in alive) and time.monotonic() < until:
            time.sleep(0.02)
        kept = [other for other in alive if (place / f"rank-{other}.pt").exists()]
        steps = [int((place / f"rank-{other}.step").read_text()) for other in kept]
        _publish(folder, place, min(steps), kept, size=0)
    return place


def write_server(folder: Path, state: Shard, updates: int) -> Path:
    """Write the server's state and make it the valid checkpoint; learners have no state to keep."""
    place = _step_folder(folder, updates)
    failure = _save(place / _SERVER, state)
    if failure:
        raise TacitError(f"the server's checkpoint could not be written: {failure}; the previous one is untouched.")
    _publish(folder, place, updates, [], 0)
    return place


def read_server(folder: Path) -> Shard:
    """Return the server's state."""
    return _load(folder / _manifest(folder)["place"] / _SERVER)


def read(folder: Path, rank: int, size: int) -> list[Shard]:
    """Return this rank's shard if ``size`` workers wrote all of them, else all shards."""
    manifest = _manifest(folder)
    ranks: list[int] = [rank] if is_complete(folder, size) else manifest["ranks"]
    return [_load(folder / manifest["place"] / f"rank-{one}.pt") for one in ranks]


def is_complete(folder: Path, size: int) -> bool:
    """Whether ``size`` workers wrote the checkpoint in ``folder`` and no shard is missing."""
    manifest = _manifest(folder)
    return bool(manifest["size"] == size == len(manifest["ranks"]))


def step_of(folder: Path) -> int | None:
    """Return the step of the checkpoint in ``folder``; None without a checkpoint."""
    return int(_manifest(folder)["step"]) if (folder / _MANIFEST).exists() else None


def mean_model(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of state dicts; values that are not floating point are those of the first."""
    return {
        name: torch.stack([m[name] for m in models]).mean(0).to(value.dtype) if value.is_floating_point() else value
        for name, value in models[0].items()
    }


def random_state() -> dict[str, Any]:
    """Return the states of the generators of torch, numpy and Python."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "python": [version, list(internal), gauss],
    }


def restore_random(stored: dict[str, Any]) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(stored["torch"])
    if stored["cuda"]:
        torch.cuda.set_rng_state_all(stored["cuda"])
    name, keys, *rest = stored["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = stored["python"]
    random.setstate((version, tuple(internal), gauss))


def _step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _save(path: Path, shard: Shard) -> str:
    """Write a file completely or not at all; return the error, or an empty text."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=True) as part, part.open("wb") as file:
            torch.save(shard, file)
    except (OSError, RuntimeError) as error:
        return f"{getattr(error, 'strerror', None) or error}"
    return ""


def _save_step(place: Path, rank: int, step: int) -> str:
    """Write the step of ``rank`` for the first rank to read; return the error, or an empty text."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / f"rank-{rank}.step").write_text(f"{step}")
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def _publish(folder: Path, place: Path, step: int, ranks: list[int], size: int) -> None:
    """Rename the manifest into place, then remove all other checkpoints."""
    manifest = {"format": FORMAT, "step": step, "place": place.name, "size": size, "ranks": ranks}
    write_text(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for other in folder.glob("step-*"):
        if other.name != place.name:
            shutil.rmtree(other, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        raise TacitError(f"{folder} holds no checkpoint: it has no {_MANIFEST}.") from None
    except json.JSONDecodeError as error:
        raise TacitError(f"{folder / _MANIFEST} cannot be read: {error}.") from None
    if manifest.get("format") != FORMAT:
        raise TacitError(f"{folder} was written by another version of tacit (format {manifest.get('format')}).")
    return manifest


def _load(path: Path) -> Shard:
    try:
        shard: Shard = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TacitError(
            f"{path} is missing; every rank must see all shards: use a folder that all machines share, or copy all "
            f"shards into one."
        ) from None
    except Exception as error:
        raise TacitError(f"{path} cannot be read: {error}") from error
    return shard
