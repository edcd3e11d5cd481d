"""The simulated world of a user's script: each worker runs it in a fiber with its own process state."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from torch import Tensor

import tacit.session
from tacit.cluster.cluster import Cluster
from tacit.core.strategy import Strategy
from tacit.errors import ScriptFailed
from tacit.session.server_model import ServerLoop, ServerModel
from tacit.simulation.base_world import BaseWorld
from tacit.simulation.channels import Channel
from tacit.simulation.computing.backward_overlap import mean_step_s
from tacit.simulation.evaluation import Progress
from tacit.simulation.scripts.following import Follower
from tacit.simulation.scripts.process_state import Interpreter, RngState
from tacit.simulation.scripts.session_collectives import SessionCollectives
from tacit.simulation.scripts.workers import ScriptServer, ScriptWorker

_OURS: Final = Path(tacit.session.__file__).parents[1]


@dataclass(frozen=True)
class Script:
    """A script, compiled once for all workers."""

    path: Path
    arguments: tuple[str, ...]
    code: CodeType
    sha256: str  # of the file's content

    def main(self) -> ModuleType:
        """Return a new ``__main__`` for one worker."""
        module = ModuleType("__main__")
        module.__file__ = str(self.path)
        return module

    def line(self) -> str:
        """Return file and line of the script that is being executed; the file is the script or one in its folder."""
        frame = self._own_frame(sys._getframe())
        return self.path.name if frame is None else f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"

    def call_in(self, frame: FrameType | None) -> str:
        """Return file, line and source text of the call of the script that ``frame``, a suspended one, belongs to."""
        own = self._own_frame(frame)
        if own is None:
            return self.path.name
        name, line = own.f_code.co_filename, own.f_lineno
        source = linecache.getline(name, line).strip()
        return f"{Path(name).name}, line {line}" + (f": {source}" if source else "")

    def _own_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame, from ``frame`` outwards, of code in the folder of the script."""
        folder = str(self.path.parent)
        while frame is not None and os.path.dirname(frame.f_code.co_filename) != folder:  # noqa: PTH120 - speed
            frame = frame.f_back
        return frame

    def own_lines(self, error: BaseException) -> Iterator[str]:
        """Yield the lines of a traceback that are in the script or in its folder."""
        for frame in traceback.extract_tb(error.__traceback__):
            path = Path(frame.filename)
            if self.path.parent in path.parents and _OURS not in path.parents and "site-packages" not in path.parts:
                yield f"  {path.relative_to(self.path.parent)}, line {frame.lineno}, in {frame.name}\n    {frame.line}"


class ScriptWorld(BaseWorld):
    """The simulation of a script."""

    def __init__(
        self,
        script: Script,
        cluster: Cluster,
        interpreter: Interpreter,
        *,
        seed: int,
        host: str,
        measured: bool,
        progress: Progress | None,
        strategy: Strategy[Any] | None,
        follower: Follower | None = None,
    ) -> None:
        super().__init__(cluster, seed=seed, host=host)
        self.strategy = strategy  # instead of the script's
        self.follower = follower
        if follower is not None:
            self.agenda.allow_observations()
        self.script, self.interpreter, self.is_measured, self._progress = script, interpreter, measured, progress
        self.shared_cache: dict[object, tuple[Any, RngState, RngState]] = {}  # results of ``tacit.shared``
        self.workers = [ScriptWorker(self, rank) for rank in range(cluster.workers)]
        self._session_collectives: dict[int, SessionCollectives] = {}  # by session
        self._servers_at: dict[tuple[int, int], ScriptServer] = {}  # by session and the rank that opened them
        self.set_endpoints(self.workers)

    def step_s(self, rank: int) -> float:
        """Return the time of a step of worker ``rank``: the mean, or that of the last one where it is measured."""
        return self.workers[rank].last_step_s if self.is_measured else mean_step_s(self.cluster, rank)

    def settle(self) -> None:
        if not any(worker.context.attached for worker in self.workers):
            raise ScriptFailed(
                0,
                "ended without tacit.attach on any worker: there is nothing to simulate; after making the optimizer, "
                "call session = tacit.attach(model, optimizer, strategy).",
            )

    def _is_over(self) -> bool:
        return self._living == 0

    def channel(self, session: int) -> Channel:
        """Return the channel of session number ``session``; the first worker that attaches opens it."""
        return self.channels[session] if session < len(self.channels) else self.open_channel()

    def session_collectives(self, session: int) -> SessionCollectives:
        """Return the exchanges among the workers of session number ``session``."""
        if session not in self._session_collectives:
            self._session_collectives[session] = SessionCollectives(self.cluster.workers, self.agenda)
            for rank, at_s in self._lost_at.items():
                self._session_collectives[session].lose(rank, at_s)
        return self._session_collectives[session]

    def open_server(
        self, worker: ScriptWorker, channel: Channel, loop: ServerLoop, model: ServerModel, steps: int | None, seed: int
    ) -> None:
        """Open the server of a session's strategy, or a shard of it, in the process of ``worker``, the caller."""

        def open_outside() -> None:  # a greenlet parks into its creator, which must not be a worker's greenlet
            server = ScriptServer(self, channel, worker.rank, loop, model, steps, seed)
            self._servers_at[channel.session, worker.rank] = server
            server.kinds = worker.kinds
            self.add_server(server, channel)
            worker.fiber.resume()

        self.agenda.at(self.agenda.now_s, open_outside)
        worker.stand_by("tacit.attach for the start of its server")

    def join_server(self, worker: ScriptWorker, channel: Channel) -> Tensor | None:
        """Let ``worker`` wait until the server in its process has ended; return the server's part of the model."""
        server = self._servers_at.get((channel.session, worker.rank))
        if server is None:
            return None
        while not server.fiber.is_over:
            server.waiter = worker.fiber
            worker.block("session.close for the end of its server")
        return server.parameters

    def lost(self, rank: int) -> None:
        for collectives in self._session_collectives.values():
            collectives.lose(rank, self.agenda.now_s)

    def returned(self, rank: int) -> None:
        raise AssertionError("faults that add a worker are refused before a script starts")

    def tell(self, rank: int, step: int, steps: int | None, time_s: float) -> None:
        """Call ``progress`` after steps of rank 0."""
        if self._progress is not None and rank == 0 and step % max(1, (steps or 0) // 100) == 0:
            self._progress(step, steps or step, time_s, None)
