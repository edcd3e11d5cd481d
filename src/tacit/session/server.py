"""A session's dealings with its strategy's server: where it lives, the model it holds, and what is kept of it.

The shards of a server live beside the workers of the first ranks, one each. Learners are never in step, so nothing here
is collective but the end: an evaluation asks the server for its model, and a checkpoint is the server's alone; learners
that go on from one take its model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacit.core.specs import current_text
from tacit.core.strategy import ServerStrategy
from tacit.errors import TacitError
from tacit.session import checkpoints
from tacit.session.backend import SessionBackend
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.server_model import KeptModel, ServerLife, ServerModel, packed_models, unpacked_models
from tacit.session.steps.optimizers import Optimizers

if TYPE_CHECKING:
    from tacit.session.steps.step_hooks import StepHooks


class SessionServer:
    """The servers of one session, as its worker sees them."""

    def __init__(
        self,
        backend: SessionBackend,
        flat: FlatModel,
        optimizers: Optimizers,
        strategy: ServerStrategy[Any],
        steps: int | None,
        seed: int,
    ) -> None:
        self._backend, self._flat, self._strategy = backend, flat, strategy
        if backend.size == 1:
            raise TacitError(
                f"{strategy} needs at least two workers: alone, a server would serve itself. Start the script with "
                f"torchrun --nproc-per-node 2, or use AllReduce(), which is plain training for one."
            )
        if strategy.shards > backend.size:
            raise TacitError(
                f"shards={strategy.shards} live beside as many workers, and there are {backend.size}; use at most that."
            )
        self._model: ServerModel | None = None
        self._life: ServerLife | None = None
        if backend.rank < strategy.shards and not backend.server_is_apart:
            self._model = ServerModel(flat, optimizers, strategy.shards, backend.rank)
            self._life = ServerLife(strategy, self._model)
        self._is_started, self._steps, self._seed = False, steps, seed

    @property
    def is_here(self) -> bool:
        """Whether the server, or a shard of it, lives beside this worker."""
        return self._life is not None

    def start(self) -> None:
        """Let the server live; its learners must be ready. Once."""
        if not self._is_started:
            self._is_started = True
            self._backend.start_server(self._life, self._model, self._steps, self._seed)
            if self._backend.server_is_apart:
                self._backend.send_start(self._flat.vector())

    def keep_models(self, every: int) -> None:
        """Keep a copy of the model every so many updates, for ``kept_models`` after the run."""
        if self._model is not None:
            self._model.every = every

    def kept_models(self) -> list[KeptModel]:
        """Return, on rank 0, the copies of the whole model that were kept. Collective."""
        own = b"" if self._model is None else packed_models(self._model.kept)
        shards = self._backend.exchange(own)[: self._strategy.shards]
        if self._backend.rank != 0:
            return []
        parts = [unpacked_models(data) if data else self._backend.server_kept for data in shards]
        return [
            KeptModel(rows[0].updates, rows[0].time_s, torch.cat([row.parameters for row in rows]))
            for rows in zip(*parts, strict=False)
        ]

    def level_out(self) -> None:
        """Wait until the servers are done, and give everybody their model. Collective."""
        part = self._backend.join_server()
        for shard, (begin, end) in enumerate(self._flat.layout.cut(self._strategy.shards)):
            if shard == self._backend.rank and part is not None:
                self._flat.vector()[begin:end].copy_(part)
            self._backend.spread(self._flat.vector()[begin:end], shard)
        self._flat.settle()

    # Checkpoints.

    def checkpoint(self, folder: Path) -> Path:
        """Write what the server needs to go on; on rank 0, where it lives. Other ranks have nothing to keep."""
        self._refuse_shards()
        if self._backend.server_is_apart:
            raise TacitError(
                "the server is a process of its own and writes its checkpoints itself: tacit serve --checkpoint-every N."
            )
        if self._life is None or self._model is None:
            return folder
        with self._backend.server_hook_lock:
            kept, updates = self._life.state_dict(), self._model.updates
        return checkpoints.write_server(folder, {"strategy": str(self._strategy), **kept}, updates)

    def resume(self, folder: Path, stepper: StepHooks) -> int:
        """Go on from the server's checkpoint: all workers take its model.

        Return the updates behind it. Before the first step.
        """
        self._refuse_shards()
        stored = checkpoints.read_server(folder)
        if current_text(stored["strategy"]) != str(self._strategy):
            raise TacitError(
                f"this checkpoint is of {stored['strategy']}, the session runs {self._strategy}; attach the strategy it was written with."
            )
        if self._life is not None:
            self._life.load_state_dict(stored)
        self.start()
        stepper.join()
        return int(stored["model"]["updates"])

    def _refuse_shards(self) -> None:
        if self._strategy.shards > 1:
            raise TacitError(
                f"the {self._strategy.shards} shards of {self._strategy} are never at one update all at once, so no checkpoint would fit together; "
                f"use shards=1 for runs that must be resumed."
            )
