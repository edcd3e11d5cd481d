"""Checkpoints of a whole run: one shard a rank, and a manifest that is renamed into place last.

    folder/manifest.json            which step is whole, how many workers wrote it, which shards it has
    folder/step-00000120/rank-0.pt  model, optimizer, session and random state of one rank

A reader believes the manifest alone, so a checkpoint that was never finished does not exist, and the one before it
does. Shards hold tensors, numbers and text; they are read with ``weights_only=True``, which unpickles no code.
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
_PATIENCE_S: Final = 10.0

Shard = dict[str, Any]


def write(folder: Path, backend: SessionBackend, shard: Shard, step: int) -> Path:
    """Write this rank's shard, wait for everybody's, and make the checkpoint the valid one. Collective."""
    place = _place(folder, step)
    failure = _save(place / f"rank-{backend.rank}.pt", shard)
    failures = [told.decode() for told in backend.exchange(failure.encode())]
    ranks = list(backend.living)
    for rank, told in zip(ranks, failures, strict=True):
        if told:
            raise TacitError(
                f"rank {rank} could not write its checkpoint: {told}; the previous checkpoint is untouched."
            )
    if backend.rank == ranks[0]:
        _publish(folder, place, step, ranks, backend.size)
    backend.exchange(b"published")
    return place


def write_surviving(folder: Path, rank: int, alive: Sequence[int], shard: Shard, step: int, ending: str | None) -> Path:
    """Write this rank's shard without help from a group that is broken; the first of the survivors waits for the
    others' files.

    It is never taken for whole: the round that could not be played any more is made up for by the mean from which all
    go on. ending: what all survivors know the run's end by. Their steps may differ, and the checkpoint's is that of the
    slowest. None where they cannot tell each other: the checkpoint then holds those whose steps agree with the first
    survivor's.
    """
    place = folder / f"step-{ending or f'{step:08d}'}.rescued"
    failure = _save_step(place, rank, step) or _save(place / f"rank-{rank}.pt", shard)
    if failure:
        raise TacitError(f"rank {rank} could not write its checkpoint: {failure}.")
    if rank == min(alive):
        until = time.monotonic() + _PATIENCE_S
        while not all((place / f"rank-{other}.pt").exists() for other in alive) and time.monotonic() < until:
            time.sleep(0.02)
        kept = [other for other in alive if (place / f"rank-{other}.pt").exists()]
        steps = [int((place / f"rank-{other}.step").read_text()) for other in kept]
        _publish(folder, place, min(steps), kept, size=0)
    return place


def write_server(folder: Path, kept: Shard, updates: int) -> Path:
    """Write what a server keeps and make it the valid checkpoint; learners have nothing of their own to keep."""
    place = _place(folder, updates)
    failure = _save(place / _SERVER, kept)
    if failure:
        raise TacitError(f"the server's checkpoint could not be written: {failure}; the previous one is untouched.")
    _publish(folder, place, updates, [], 0)
    return place


def read_server(folder: Path) -> Shard:
    """Return what a server kept."""
    return _load(folder / _manifest(folder)["place"] / _SERVER)


def read(folder: Path, rank: int, size: int) -> list[Shard]:
    """Return this rank's own shard where ``size`` workers wrote all of them; otherwise every shard there is."""
    manifest = _manifest(folder)
    ranks: list[int] = [rank] if is_whole(folder, size) else manifest["ranks"]
    return [_load(folder / manifest["place"] / f"rank-{one}.pt") for one in ranks]


def is_whole(folder: Path, size: int) -> bool:
    """Whether ``size`` workers wrote the checkpoint in ``folder`` and none is missing, so that each finds its own
    shard.
    """
    manifest = _manifest(folder)
    return bool(manifest["size"] == size == len(manifest["ranks"]))


def step_of(folder: Path) -> int | None:
    """Return the step of the checkpoint in ``folder``; None where there is none."""
    return int(_manifest(folder)["step"]) if (folder / _MANIFEST).exists() else None


def mean_model(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of state dicts; what is not a real number is taken from the first."""
    return {
        name: torch.stack([m[name] for m in models]).mean(0).to(value.dtype) if value.is_floating_point() else value
        for name, value in models[0].items()
    }


def random_state() -> dict[str, Any]:
    """Return where torch's, numpy's and python's own generators stand."""
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
    torch.set_rng_state(stored["torch"])
    if stored["cuda"]:
        torch.cuda.set_rng_state_all(stored["cuda"])
    name, keys, *rest = stored["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = stored["python"]
    random.setstate((version, tuple(internal), gauss))


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _save(path: Path, shard: Shard) -> str:
    """Write a file atomically; return the reason of a failure, or an empty text."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=True) as part, part.open("wb") as file:
            torch.save(shard, file)
    except (OSError, RuntimeError) as error:
        return f"{getattr(error, 'strerror', None) or error}"
    return ""


def _save_step(place: Path, rank: int, step: int) -> str:
    """Write where the first survivor finds it at which step ``rank`` is; return what went wrong, or nothing."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / f"rank-{rank}.step").write_text(f"{step}")
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def _publish(folder: Path, place: Path, step: int, ranks: list[int], size: int) -> None:
    """Rename the manifest into place, then remove checkpoints that are no longer the valid one."""
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
            f"{path} is missing; every rank must see all shards: use a folder that all machines share, or copy them together."
        ) from None
    except Exception as error:
        raise TacitError(f"{path} cannot be read: {error}") from error
    return shard
