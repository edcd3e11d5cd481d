"""One worker's part of a checkpoint: its state dict, its shard, and its part of a rescue checkpoint."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.core.specs import current_text
from tacit.core.strategy import Strategy
from tacit.errors import Interrupted, PeerLost, TacitError, TimedOut
from tacit.record.merge import unpacked
from tacit.session import checkpoints
from tacit.session.backend import SessionBackend, synchronize_clocks
from tacit.session.recording.recorder import Recorder
from tacit.session.steps.optimizers import Optimizers
from tacit.session.steps.step_hooks import StepHooks


class CheckpointShard:
    """Writes and reads model, optimizer, strategy state and record of one worker."""

    def __init__(
        self,
        backend: SessionBackend,
        model: nn.Module,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        hooks: StepHooks,
        recorder: Recorder,
    ) -> None:
        self._backend, self._model, self._optimizers, self._strategy = backend, model, optimizers, strategy
        self._hooks, self._recorder = hooks, recorder

    def state_dict(self) -> dict[str, Any]:
        """Return the state of strategy and record, without model and optimizer."""
        with self._backend.hook_lock:
            return {
                "format": checkpoints.FORMAT,
                "strategy": str(self._strategy),
                "size": self._backend.size,
                "time_s": self._backend.now_s(),
                **self._hooks.state_dict(),
                **self._recorder.state_dict(),
            }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._check(stored)
        self._hooks.load_state_dict(stored)
        self._load_record(stored)

    def write(self, folder: Path) -> Path:
        """Write the checkpoint of all workers into ``folder``. Collective."""
        self._backend.drain()
        synchronize_clocks(self._backend)
        return checkpoints.write(folder, self._backend, self._shard(), self._hooks.step)

    def resume(self, folder: Path) -> None:
        """Continue from the checkpoint in ``folder``: exactly, or from the mean of the models of other workers."""
        checkpoints.check_strategy(folder, str(self._strategy))
        checkpoints.check_same(folder, self._backend)
        shards = checkpoints.read(folder, self._backend.rank, self._backend.size)
        if checkpoints.is_complete(folder, self._backend.size):
            self._resume_exactly(shards[0])
        else:
            self._resume_from_mean(shards)

    def rescue(self, folder: Path, error: PeerLost | TimedOut | Interrupted) -> Path | None:
        """Write this rank's shard of a rescue checkpoint, as all ranks do that ``error`` does not name as missing.

        Return None if no valid checkpoint holds the shard.
        """
        missing: tuple[int, ...] = ()
        if not isinstance(error, Interrupted):
            missing = error.ranks if isinstance(error, PeerLost) else error.missing
        others = [other for other in self._backend.live_ranks if other not in missing]
        shard = self._shard()
        if not checkpoints.model_is_finite(shard["model"]):
            return None
        name, is_gone = self._backend.failure_name, self._backend.is_gone
        return checkpoints.write_surviving(folder, self._backend.rank, others, shard, self._hooks.step, name, is_gone)

    def _shard(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizers.state_dict(),
            "session": self.state_dict(),
            "random": checkpoints.random_state(),
            "trace": self._recorder.packed(),
        }

    # Joiners.

    def everything(self) -> bytes:
        """Return what a joiner needs: all but this worker's own random streams and record."""
        file = io.BytesIO()
        state = {"model": self._model.state_dict(), "optimizer": self._optimizers.state_dict()}
        torch.save({**state, "session": {**self._hooks.state_for_joiners(), "time_s": self._backend.now_s()}}, file)
        return file.getvalue()

    def adopt(self, everything: bytes) -> None:
        """Continue from what ``everything`` returned on another worker. No code in it is executed."""
        stored = torch.load(io.BytesIO(everything), weights_only=True)
        self._model.load_state_dict(stored["model"])
        self._optimizers.load_state_dict(stored["optimizer"])
        self._hooks.adopt(stored["session"])
        self._backend.set_clock(stored["session"]["time_s"])
        self._recorder.join(self._hooks.step, stored["session"]["time_s"])

    def _resume_exactly(self, shard: dict[str, Any]) -> None:
        self._model.load_state_dict(shard["model"])
        self._optimizers.load_state_dict(shard["optimizer"])
        self.load_state_dict(shard["session"])
        self._backend.restore_trace(unpacked(shard["trace"])[0])
        checkpoints.restore_random(shard["random"])

    def _resume_from_mean(self, shards: list[dict[str, Any]]) -> None:
        """Start from the mean of the models, at the smallest step.

        Steps differ in gossip, and where the last round ended on some ranks only.
        """
        models = [shard["model"] for shard in shards]
        steps = [int(shard["session"]["meter"]["step"]) for shard in shards]
        if not self._strategy.keeps_models_apart:  # ranks must agree on the strategy's state
            shards = [shard for shard, step in zip(shards, steps, strict=True) if step == min(steps)]
        stored, mine = [shard["session"] for shard in shards], self._backend.rank % len(shards)
        counters = steps.index(min(steps)) if self._strategy.keeps_models_apart else mine
        self._check(stored[mine])
        self._model.load_state_dict(checkpoints.mean_model(models))
        self._optimizers.load_state_dict(shards[mine]["optimizer"])
        self._hooks.load_merged(stored, counters)
        self._load_record(stored[counters])

    def _check(self, stored: Mapping[str, Any]) -> None:
        if stored["format"] != checkpoints.FORMAT or current_text(stored["strategy"]) != str(self._strategy):
            raise TacitError(
                f"this state is of {stored['strategy']} (format {stored['format']}), but the session runs "
                f"{self._strategy} (format {checkpoints.FORMAT}); attach the strategy that wrote it."
            )

    def _load_record(self, stored: Mapping[str, Any]) -> None:
        self._recorder.load_state_dict(stored, self._hooks.step)
        self._backend.set_clock(stored["time_s"])
        self._recorder.continue_at(stored["time_s"])
