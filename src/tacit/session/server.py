"""The server of a session's strategy: where it runs, its model, its checkpoints.

The shards of a server run in the processes of the first ranks, one each. Learners are never in step, so only the end is
collective: an evaluation asks the server for its model, and a checkpoint holds the server's state; learners that resume
from one take its model. The first shard names the version of a checkpoint, and each shard writes its part at it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacit.core.network import server_address
from tacit.core.strategy import ServerStrategy
from tacit.errors import TacitError
from tacit.session import checkpoints
from tacit.session.backend import SessionBackend
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.server_model import KeptModel, ServerLoop, ServerModel, packed_models, unpacked_models
from tacit.session.steps.optimizers import Optimizers
from tacit.strategies.servers.messages import CheckpointRequest, PartWritten

if TYPE_CHECKING:
    from tacit.session.steps.step_hooks import StepHooks


class SessionServer:
    """The server of one session, as its worker sees it."""

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
                f"{strategy} needs at least two workers, and there is one; start the script with "
                f"torchrun --nproc-per-node 2, or use AllReduce(), which is plain training with one worker."
            )
        if strategy.shards > backend.size:
            raise TacitError(
                f"shards={strategy.shards} must be at most the number of workers, {backend.size}; use fewer shards or "
                f"more workers."
            )
        self._model: ServerModel | None = None
        self._loop: ServerLoop | None = None
        if backend.rank < strategy.shards and not backend.server_is_process:
            self._model = ServerModel.of_session(flat, optimizers, strategy.shards, backend.rank)
            self._loop = ServerLoop(strategy, self._model)
        self._is_started, self._steps, self._seed = False, steps, seed

    @property
    def is_here(self) -> bool:
        """Whether the server, or a shard of it, runs in this worker's process."""
        return self._loop is not None

    def start(self) -> None:
        """Start the server, once; its learners must be ready."""
        if not self._is_started:
            self._is_started = True
            self._backend.start_server(self._loop, self._model, self._steps, self._seed)
            if self._backend.server_is_process:
                self._backend.send_initial_model(self._flat.vector())

    def keep_models(self, every: int) -> None:
        """Keep a copy of the model after every ``every`` updates, for ``kept_models`` after the run."""
        if self._model is not None:
            self._model.every = every

    def kept_models(self) -> list[KeptModel]:
        """Return the kept copies of the whole model on the first rank, else an empty list. Collective."""
        own = b"" if self._model is None else packed_models(self._model.kept)
        shards = self._backend.all_gather(own)[: self._strategy.shards]
        if self._backend.rank != min(self._backend.live_ranks):
            return []
        parts = [unpacked_models(data) if data else self._backend.server_models for data in shards]
        return [
            KeptModel(rows[0].updates, rows[0].time_s, torch.cat([row.parameters for row in rows]))
            for rows in zip(*parts, strict=False)
        ]

    def distribute_model(self) -> None:
        """Wait until all shards are done, and give all workers their model. Collective."""
        part = self._backend.join_server()
        first = min(self._backend.live_ranks)  # it has the result of a server process
        for shard, (begin, end) in enumerate(self._flat.layout.cut(self._strategy.shards)):
            source = first if self._backend.server_is_process else shard
            if source == self._backend.rank and part is not None:
                self._flat.vector()[begin:end].copy_(part)
            self._backend.broadcast(self._flat.vector()[begin:end], source)
        self._flat.write_back()

    # Checkpoints.

    def checkpoint(self, folder: Path, hooks: StepHooks) -> Path:
        """Write the server's state: on rank 0 where it runs, or its shards in their processes.

        Other ranks than 0 return at once.
        """
        if self._backend.server_is_process:
            raise TacitError(
                "the server is a process of its own and writes its checkpoints itself; start it with "
                "tacit serve --checkpoint-every N."
            )
        if self._backend.rank != 0 or self._loop is None or self._model is None:
            return folder
        if self._strategy.shards > 1:
            return self._checkpoint_shards(folder, hooks)
        with self._backend.server_hook_lock:
            state, updates = self._loop.state_dict(), self._model.updates
        return checkpoints.write_server(folder, {"strategy": str(self._strategy), **state}, updates)

    def _checkpoint_shards(self, folder: Path, hooks: StepHooks) -> Path:
        """Let the first shard name a version, at which all shards write their parts, and complete the checkpoint."""
        if not self._strategy.keeps_shards:
            raise TacitError(
                f"{self._strategy} has shards={self._strategy.shards}, and its serve() answers no CheckpointRequest; "
                f"answer it and set keeps_shards = True, or use shards=1 for runs that must be resumed."
            )
        self.start()
        network = self._backend.network
        with hooks.in_hook():
            network.send(server_address(0), CheckpointRequest(str(folder.resolve())))
            addresses = [server_address(shard) for shard in range(self._strategy.shards)]
            written = [network.receive(PartWritten, source=address)[1] for address in addresses]
        failures = [part.failure for part in written]
        return checkpoints.publish_server(folder, written[0].version, failures, str(self._strategy))

    @property
    def can_rescue(self) -> bool:
        """Whether a checkpoint can be written after the run has failed: one server is here."""
        return self.is_here and self._strategy.shards == 1

    def resume(self, folder: Path, hooks: StepHooks) -> int:
        """Continue from the server's checkpoint before the first step, and return its updates.

        All workers take the server's model.
        """
        checkpoints.check_strategy(folder, str(self._strategy))
        checkpoints.check_same(folder, self._backend)
        stored = checkpoints.read_server(folder, self._backend.rank if self.is_here else 0)
        checkpoints.check_strategy(folder, str(self._strategy), stored["strategy"])
        if self._loop is not None:
            self._loop.load_state_dict(stored)
        self.start()
        hooks.join()
        return int(stored["model"]["updates"])
