"""What a worker keeps of a session to go on from later: state dicts, its shard of a checkpoint, and what survivors
rescue.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tacit.core.specs import current_text
from tacit.core.strategy import Strategy
from tacit.errors import Interrupted, PeerLost, TacitError, TimedOut
from tacit.record.merge import unpacked
from tacit.session import checkpoints
from tacit.session.backend import SessionBackend, level_clocks
from tacit.session.recorder import Recorder
from tacit.session.steps.optimizers import Optimizers
from tacit.session.steps.step_hooks import StepHooks


class CheckpointShard:
    """Of one worker: its model and optimizer, its part of the strategy, and what it has written down."""

    def __init__(
        self,
        backend: SessionBackend,
        model: nn.Module,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        stepper: StepHooks,
        recorder: Recorder,
    ) -> None:
        self._backend, self._model, self._optimizers, self._strategy = backend, model, optimizers, strategy
        self._stepper, self._recorder = stepper, recorder

    def state_dict(self) -> dict[str, Any]:
        """Return everything but model and optimizer."""
        with self._backend.hook_lock:
            return {
                "format": checkpoints.FORMAT,
                "strategy": str(self._strategy),
                "size": self._backend.size,
                "time_s": self._backend.now_s(),
                **self._stepper.state_dict(),
                **self._recorder.state_dict(),
            }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""
        self._check(stored)
        self._stepper.load_state_dict(stored)
        self._take_times(stored)

    def write(self, folder: Path) -> Path:
        """Write the checkpoint of all workers into ``folder``. Collective."""
        level_clocks(self._backend)
        return checkpoints.write(folder, self._backend, self._shard(), self._stepper.step)

    def resume(self, folder: Path) -> None:
        """Go on from the checkpoint in ``folder``: exactly, or where another number of workers wrote it, from the mean
        of its models.
        """
        shards = checkpoints.read(folder, self._backend.rank, self._backend.size)
        if checkpoints.is_whole(folder, self._backend.size):
            self._resume_exactly(shards[0])
        else:
            self._resume_from_mean(shards)

    def rescue(self, folder: Path, error: PeerLost | TimedOut | Interrupted) -> Path:
        """Write what is left of a run whose group is broken; the others that ``error`` does not miss do the same."""
        missing: tuple[int, ...] = ()
        if not isinstance(error, Interrupted):
            missing = error.ranks if isinstance(error, PeerLost) else error.missing
        alive = [other for other in range(self._backend.size) if other not in missing]
        return checkpoints.write_surviving(
            folder, self._backend.rank, alive, self._shard(), self._stepper.step, self._backend.ending
        )

    def _shard(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizers.state_dict(),
            "session": self.state_dict(),
            "random": checkpoints.random_state(),
            "trace": self._recorder.packed(),
        }

    def _resume_exactly(self, shard: dict[str, Any]) -> None:
        self._model.load_state_dict(shard["model"])
        self._optimizers.load_state_dict(shard["optimizer"])
        self.load_state_dict(shard["session"])
        self._backend.take_trace(unpacked(shard["trace"])[0])
        checkpoints.restore_random(shard["random"])

    def _resume_from_mean(self, shards: list[dict[str, Any]]) -> None:
        """Start from the mean of the models, at the step of the slowest: steps differ in gossip, and where a last round
        ended on some ranks only.
        """
        models = [shard["model"] for shard in shards]
        steps = [int(shard["session"]["meter"]["step"]) for shard in shards]
        if not self._strategy.keeps_models_apart:  # ranks must agree on what a strategy remembers
            shards = [shard for shard, step in zip(shards, steps, strict=True) if step == min(steps)]
        stored, mine = [shard["session"] for shard in shards], self._backend.rank % len(shards)
        counters = steps.index(min(steps)) if self._strategy.keeps_models_apart else mine
        self._check(stored[mine])
        self._model.load_state_dict(checkpoints.mean_model(models))
        self._optimizers.load_state_dict(shards[mine]["optimizer"])
        self._stepper.load_merged(stored, counters)
        self._take_times(stored[counters])

    def _check(self, stored: Mapping[str, Any]) -> None:
        if stored["format"] != checkpoints.FORMAT or current_text(stored["strategy"]) != str(self._strategy):
            raise TacitError(
                f"this state is of {stored['strategy']} (format {stored['format']}), the session runs {self._strategy} "
                f"(format {checkpoints.FORMAT}); attach the strategy it was written with."
            )

    def _take_times(self, stored: Mapping[str, Any]) -> None:
        self._recorder.load_state_dict(stored, self._stepper.step)
        self._backend.set_clock(stored["time_s"])
