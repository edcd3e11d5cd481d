"""Server in its own process, as run by ``tacit serve``. It finds the workers through their store.

Worker 0 sends the initial model. At the end the first of the last learners receives the final model, the intermediate
models, and the server's part of the trace. Where ``tacit launch`` starts a server again, it continues from its last
checkpoint, and learners join it again; without a checkpoint all begin anew.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from torch import nn

from tacit.core.messages import Message, TensorMessage
from tacit.core.network import SERVER
from tacit.core.strategy import ServerStrategy, Strategy
from tacit.errors import Disagreement, TacitError
from tacit.record.merge import LossCurve, packed
from tacit.record.trace import EventQueue, Trace
from tacit.runtime.environment import Environment, address_towards, own_address
from tacit.runtime.failures.causes import LOST, Cause, publish_cause
from tacit.runtime.launched import CHECKPOINTS, LaunchedLives
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.limits import frame_limit_bytes
from tacit.runtime.messaging.secret import find_secret
from tacit.runtime.participants import heartbeats, is_silent, taking_part
from tacit.runtime.rendezvous import are_local, check_secrets, place
from tacit.runtime.server.host import ClockTime, send_result
from tacit.runtime.server.last_learners import LastLearners
from tacit.runtime.server.thread import ProcessServer
from tacit.session import checkpoints
from tacit.session.agreement import first_difference
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.server_model import ServerLoop, ServerModel, packed_models
from tacit.session.steps.optimizers import Optimizers

_BEGUN: Final = "server/begun"
"""In the store: the moment at which the run's clock was zero, for a later life of the server on this machine."""


def serve(
    model: nn.Module,
    optimizers: Optimizers,
    strategy: Strategy[Any],
    *,
    table: dict[str, Any],
    steps: int | None,
    seed: int,
    keep_every: int | None = None,
    interface: str | None = None,
    security: str | None = None,
    timeout_s: float | None = None,
) -> int:
    """Serve the run that the environment names until it ends; return the number of updates.

    table: the settings that must be equal on all ranks; compared with those of worker 0.
    """
    if not isinstance(strategy, ServerStrategy) or strategy.shards > 1:
        server = "shards in its workers' processes" if strategy.has_server else "no server"
        raise TacitError(f"{strategy} has {server}; tacit serve needs a strategy with one server.")
    environment = Environment(300.0)
    life = _Served(model, optimizers, strategy, keep_every)
    if environment.has(_BEGUN) and not life.has_checkpoint:
        publish_cause(environment, Cause(LOST, [SERVER]))
        environment.skip_ended_runs()
    environment.publish("place", place(interface))
    places = environment.gather("place", range(environment.size + 1))
    check_secrets(places)
    is_local = are_local(places)
    address = "127.0.0.1" if is_local else own_address(interface) or address_towards(os.environ["MASTER_ADDR"])
    [first] = environment.gather("table", [0])
    if (difference := first_difference(table, first)) is not None:
        raise Disagreement(difference[0], difference[1], difference[2], SERVER, at_attach=True)
    lives, beats = LaunchedLives(environment.store), heartbeats(environment)
    endpoint = MessageEndpoint(
        SERVER,
        [*range(environment.size)],
        environment.store,
        host=address,
        security=security or ("token" if is_local else "curve"),
        secret=find_secret(),
        hook_lock=life.hook_lock,
        handler=_nothing,
        sent=life.sent,
        received=life.received,
        timeout_s=timeout_s or 1800.0,
        largest_bytes=frame_limit_bytes(model),
        life=lives.life,
        is_stopped=(lambda peer: life.has_begun and is_silent(beats, peer)) if lives.is_elastic else None,
    )
    try:
        if (begun := environment.find(_BEGUN)) is None:
            life.begin(endpoint)
            environment.store.set(_BEGUN, repr(life.origin_s))
        else:
            life.origin_s = float(begun)
            endpoint.report_replaced(taking_part(environment))  # a new life joins later; nothing may wait for it before
        life.run(endpoint, environment, steps, seed)
    finally:
        endpoint.close()
    return life.model.updates


class _Served:
    """The server's loop, trace and checkpoints."""

    def __init__(
        self, model: nn.Module, optimizers: Optimizers, strategy: ServerStrategy[Any], keep_every: int | None
    ) -> None:
        self._flat = FlatModel(model)
        self.model = ServerModel.of_session(self._flat, optimizers)
        self.model.every = keep_every
        self._strategy, self._loop = strategy, ServerLoop(strategy, self.model)
        self.hook_lock, self._trace_rows = HookLock(), EventQueue()
        self.origin_s, self._received_s = time.perf_counter(), 0.0  # origin: when the run's clock was zero
        self.has_begun = False  # all workers have attached
        folder, _, every = os.environ.get(CHECKPOINTS, "").rpartition(":")
        self._folder = Path(folder) if folder else None
        self._every, self._attempts, self._due = int(every or 1), checkpoints.Attempts(), False

    @property
    def has_checkpoint(self) -> bool:
        return self._folder is not None and checkpoints.step_of(self._folder) is not None

    def begin(self, endpoint: MessageEndpoint) -> None:
        """Receive clock and model from worker 0."""
        _, sent = endpoint.receive(ClockTime, source=0)
        self.origin_s = time.perf_counter() - sent.time_s
        _, start = endpoint.receive(TensorMessage, source=0)
        self._received_s = self.now_s()
        self._trace_rows.clear()  # the initial model does not count as the strategy's traffic
        self.model.parameters.copy_(start.tensor)

    def run(self, endpoint: MessageEndpoint, environment: Environment, steps: int | None, seed: int) -> None:
        """Serve to the end, from the last checkpoint if there is one."""
        self.has_begun = True
        if self._folder is not None and checkpoints.step_of(self._folder) is not None:
            self._loop.load_state_dict(checkpoints.read_server(self._folder))
        else:
            self._due = self._folder is not None  # a checkpoint at once: from here on the server can be started again
        self.model.updated = self._plan_checkpoint
        server = ProcessServer(
            endpoint,
            self.hook_lock,
            self.model,
            environment.size,
            steps,
            seed,
            self.now_s,
            lambda: self._received_s,
            self._trace_rows,
            endpoint.fail,
        )
        server.network.waits = self._checkpoint
        server.start(self._loop)
        parameters = server.join()
        self._checkpoint()
        trace = Trace()
        trace.rows.extend(self._trace_rows)
        record, kept = packed(trace, LossCurve(None)), packed_models(self.model.kept)
        send_result(endpoint, min(LastLearners(environment).decide(endpoint)), parameters.cpu(), record, kept)

    def now_s(self) -> float:
        return time.perf_counter() - self.origin_s

    def sent(self, to: int, message: Message, size_bytes: int) -> None:
        self._trace_rows.send(SERVER, to, self.now_s(), size_bytes, message.kind)

    def received(self, source: int, message: Message) -> None:
        self._received_s = now_s = self.now_s()
        self._trace_rows.receive(SERVER, source, now_s, message.size_bytes, message.kind)

    def _plan_checkpoint(self, updates: int) -> None:
        self._due |= self._folder is not None and updates % self._every == 0

    def _checkpoint(self) -> None:
        """Write a checkpoint if one is due. Called between updates, when state and model belong together."""
        if self._due and self._folder is not None:
            self._due = False
            folder, kept = self._folder, {"strategy": str(self._strategy), **self._loop.state_dict()}
            self._attempts.try_to(lambda: checkpoints.write_server(folder, kept, self.model.updates))


def _nothing(source: int, message: Message) -> None:
    """Do nothing: a server takes all messages in ``receive``."""
