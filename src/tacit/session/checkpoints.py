"""Checkpoints of a run: one shard per rank, and a manifest that is renamed into place last.

    folder/manifest.json            the complete step, the number of workers that wrote it, its shards
    folder/previous.json            the same of the checkpoint before
    folder/step-00000120/rank-0.pt  model, optimizer, session and random state of one rank

Only the manifest makes a checkpoint valid: while one is being written, the previous one remains. Shards hold tensors,
numbers and text; they are read with ``weights_only=True``, which unpickles no code.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.core.specs import current_text, first_difference_of
from tacit.errors import TacitError
from tacit.session.backend import SessionBackend
from tacit.session.checkpoint_files import (
    FORMAT,
    NOT_FINITE,
    Shard,
    current_place,
    discard,
    load_shard,
    manifest_of,
    place_of,
    publish,
    save_shard,
    save_step,
    server_file,
)
from tacit.strategies.vector_checks import has_wrong_numbers

__all__ = ["FORMAT", "Shard"]

_SHARDS_TIMEOUT_S: Final = 10.0
"""How long a survivor waits for the shards of others, and for the manifest that another publishes."""
_LOOK_S: Final = 0.02
_MOST_FAILURES: Final = 3
_log: Final = logging.getLogger("tacit")


class CheckpointFailed(TacitError):
    """A checkpoint could not be written. The previous one is valid, and nothing of this one is left."""


class Attempts:
    """Counts the checkpoints in a row that could not be written. Two are reported as warnings; the third raises.

    warns: whether this process reports them.
    """

    def __init__(self, *, warns: bool = True) -> None:
        self._failed, self._warns = 0, warns

    def try_to(self, write: Callable[[], Path]) -> Path | None:
        """Return the result of ``write``; None if it failed and the run continues."""
        try:
            written = write()
        except CheckpointFailed as failure:
            self._failed += 1
            if self._failed >= _MOST_FAILURES:
                raise
            if self._warns:
                _log.warning("%s The run continues until %d in a row have failed.", failure, _MOST_FAILURES)
            return None
        self._failed = 0
        return written


def write(folder: Path, backend: SessionBackend, shard: Shard, step: int) -> Path:
    """Write this rank's shard, wait for those of all ranks, and make the checkpoint the valid one. Collective."""
    place = place_of(folder, step)
    is_finite = model_is_finite(shard["model"])
    failure = save_shard(place / f"rank-{backend.rank}.pt", shard) if is_finite else NOT_FINITE
    failures = _answers(backend, failure)
    ranks = [*failures]
    first_failed = next((rank for rank in ranks if failures[rank]), None)
    if first_failed is not None:
        backend.all_gather(b"")  # all ranks know of it before one writes the next checkpoint to the same place
        if backend.rank == ranks[0]:
            discard(folder, place)
        for rank in ranks:
            if failures[rank] == NOT_FINITE:
                raise _not_finite(f"rank {rank}")
        raise CheckpointFailed(
            f"rank {first_failed} could not write its checkpoint: {failures[first_failed]}; the previous checkpoint "
            f"is untouched."
        )
    failure = ""
    if backend.rank == ranks[0]:
        strategy = _strategy_of(shard)
        failure = _unseen(place, [f"rank-{rank}.pt" for rank in ranks])
        failure = failure or publish(folder, place, step, ranks, backend.size, strategy=strategy)
    failure = _answers(backend, failure).get(ranks[0], f"rank {ranks[0]} was lost")
    if failure:
        raise CheckpointFailed(f"the checkpoint could not be completed: {failure}; the previous one is untouched.")
    return place


def _answers(backend: SessionBackend, failure: str) -> dict[int, str]:
    """Return the failures of all ranks that take part, by rank; an empty text is none. Collective."""
    return {rank: one[1:].decode() for rank, one in enumerate(backend.all_gather(b"-" + failure.encode())) if one}


def write_surviving(
    folder: Path,
    rank: int,
    others: Sequence[int],
    shard: Shard,
    step: int,
    failure_name: str | None,
    is_gone: Callable[[int], bool],
) -> Path | None:
    """Write this rank's shard without collectives, as ``others`` do; return None if no valid checkpoint holds it.

    Such a checkpoint is never complete: a run resumes from its mean model, which replaces the round that failed. Every
    rank waits until each of the others has written or ``is_gone``. The lowest rank that has written publishes the
    manifest; if it does not, each rank does that itself.
    failure_name: of this end of the run, equal on all ranks, so that they write to one folder; None: there is one rank.
    """
    place = folder / f"step-{failure_name or f'{step:08d}'}.rescued"
    failure = save_step(place, rank, step) or save_shard(place / f"rank-{rank}.pt", shard)
    if failure:
        (place / f"rank-{rank}.step").unlink(missing_ok=True)
        raise TacitError(f"rank {rank} could not write its checkpoint: {failure}.")
    awaited = [other for other in others if other != rank]

    def written(other: int) -> bool:
        return (place / f"rank-{other}.pt").exists()

    _wait_until(lambda: all(written(other) or is_gone(other) for other in awaited))
    kept = sorted([rank, *(other for other in awaited if written(other))])
    if rank != kept[0]:
        _wait_until(lambda: current_place(folder) == place.name or is_gone(kept[0]))
    if current_place(folder) != place.name:
        steps = [int((place / f"rank-{other}.step").read_text()) for other in kept]
        failure = publish(folder, place, min(steps), kept, size=0, strategy=_strategy_of(shard))
        if failure:
            raise TacitError(f"rank {rank} could not complete the checkpoint: {failure}.")
    return place if rank in manifest_of(folder)["ranks"] else None


def _strategy_of(shard: Shard) -> str:
    return str(shard.get("session", {}).get("strategy", ""))


def _unseen(place: Path, names: Sequence[str]) -> str:
    """Wait until this machine sees all files, which others may have written; return the error, or an empty text."""
    _wait_until(lambda: all((place / name).exists() for name in names))
    missing = next((name for name in names if not (place / name).exists()), None)
    return f"{missing} is not in {place} on this machine; use a folder that all machines share" if missing else ""


def _wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _SHARDS_TIMEOUT_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


def write_server(folder: Path, state: Shard, updates: int) -> Path:
    """Write the server's state and make it the valid checkpoint; learners have no state to keep."""
    is_finite = not has_wrong_numbers(state["model"]["parameters"])
    path = place_of(folder, updates) / server_file(0)
    failure = save_shard(path, state) if is_finite else NOT_FINITE
    return publish_server(folder, updates, [failure], state["strategy"])


def publish_server(folder: Path, updates: int, failures: Sequence[str], strategy: str) -> Path:
    """Make the checkpoint valid whose parts the server's shards have written; ``failures``: of each, mostly empty."""
    place = place_of(folder, updates)
    failure = next(filter(None, failures), "") or _unseen(place, [*map(server_file, range(len(failures)))])
    failure = failure or publish(folder, place, updates, [], 0, strategy=strategy)
    if not failure:
        return place
    discard(folder, place)
    if NOT_FINITE in failures:
        raise _not_finite("the server")
    raise CheckpointFailed(f"the server's checkpoint could not be written: {failure}; the previous one is untouched.")


def _not_finite(whose: str) -> TacitError:
    return TacitError(
        f"the model of {whose} contains NaN or infinity, so no checkpoint is written; the previous checkpoint is "
        f"untouched, and a smaller learning rate is the usual way out."
    )


def check_strategy(folder: Path, strategy: str, stored: str | None = None) -> None:
    """Raise unless the checkpoint in ``folder`` is of ``strategy``; stored: the strategy's text in one of its files."""
    found = stored or str(manifest_of(folder).get("strategy", ""))  # earlier versions have it in the files only
    if found and (difference := first_difference_of(current_text(found), strategy)):
        raise TacitError(
            f"the checkpoint in {folder} is of {found}, but the session runs {strategy}: {difference}. "
            f"Attach the strategy that wrote it."
        )


def check_same(folder: Path, backend: SessionBackend) -> None:
    """Raise unless all ranks find the same checkpoint in ``folder``. Collective."""
    own = json.dumps(manifest_of(folder), sort_keys=True).encode()
    found = backend.all_gather(own)
    first = next(rank for rank, manifest in enumerate(found) if manifest)
    other = next((rank for rank, manifest in enumerate(found) if manifest and manifest != found[first]), None)
    if other is not None:
        steps = [json.loads(found[rank])["place"] for rank in (first, other)]
        raise TacitError(
            f"rank {first} finds {steps[0]} in {folder} and rank {other} finds {steps[1]}, another checkpoint; use a "
            f"folder that all machines share, or copy all files into one."
        )


def read_server(folder: Path, shard: int = 0) -> Shard:
    """Return the state of the server, or of a shard of it."""
    return load_shard(folder, server_file(shard))


def read(folder: Path, rank: int, size: int) -> list[Shard]:
    """Return this rank's shard if ``size`` workers wrote all of them, else all shards."""
    ranks: list[int] = [rank] if is_complete(folder, size) else manifest_of(folder)["ranks"]
    if not ranks:
        raise TacitError(f"the checkpoint in {folder} is of a server strategy; attach the strategy that wrote it.")
    return [load_shard(folder, f"rank-{one}.pt") for one in ranks]


def is_complete(folder: Path, size: int) -> bool:
    """Whether ``size`` workers wrote the checkpoint in ``folder`` and no shard is missing."""
    manifest = manifest_of(folder)
    return bool(manifest["size"] == size == len(manifest["ranks"]))


def step_of(folder: Path) -> int | None:
    """Return the step of the checkpoint in ``folder``; None without a checkpoint."""
    return None if current_place(folder) is None else int(manifest_of(folder)["step"])


def model_is_finite(model: dict[str, Any]) -> bool:
    """Return whether all floating-point tensors of a state dict are finite."""
    values = [value for value in model.values() if isinstance(value, Tensor) and value.is_floating_point()]
    return not any(map(has_wrong_numbers, values))


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
