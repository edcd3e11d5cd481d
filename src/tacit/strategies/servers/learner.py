"""K-sync, K-batch-sync, K-async and K-batch-async: a server that waits for K of P learners, or for K mini-batches from
anyone.

Dutta, Joshi, Ghosh, Dube & Nagpurkar, "Slow and Stale Gradients Can Win the Race" (AISTATS 2018, arXiv 1803.01113;
extended 2003.10579).
    w_{j+1} = w_j − (η/K) Σ_{l=1..K} g(w_τ(l,j), ξ_{l,j}),   τ(l,j) = j for the sync kinds, ≤ j for the async ones

                    the K are                    after its push a learner        at an update the others
    K-sync          the first K learners         idles until the update          are cancelled and restart at the new w
    K-batch-sync    the first K mini-batches     goes on at the same w           are cancelled and restart at the new w
    K-async         the first K learners         idles until the update          go on at their old w (stale gradients)
    K-batch-async   the first K mini-batches     fetches the current w, goes on  go on at their old w

Why: with random computing times the slowest of P learners sets the pace of synchronous SGD; waiting for fewer costs
noise or staleness instead.

Here is the learner's side, ``counter.py`` has the server's. With ``shards`` > 1 a server is several, each with a part
of the model: the first one's version is the one that counts, and in the sync kinds a learner begins only when no part
of its model is older.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback.feedback import Feedback, FeedbackState, Update
from tacit.core.messages import Message
from tacit.core.network import server_address
from tacit.core.strategy import ServerStrategy, TakesJoiners
from tacit.core.worker import Server, Worker
from tacit.errors import require
from tacit.strategies.servers.channels import check_links, down, knowing, up
from tacit.strategies.servers.messages import (
    ServedModel,
    ServerAsk,
    ServerLeave,
    ServerPush,
    ServerRestart,
    ShownModel,
    in_full,
)
from tacit.strategies.servers.server import ParameterServer, ServerState
from tacit.strategies.servers.staleness import Rate


@dataclass
class Learner:
    """What a learner remembers."""

    versions: list[int]  # of the parts of its model, by shard
    pushes: int = 0
    fresh: list[tuple[int, Tensor | Update]] = field(
        default_factory=list
    )  # versions and first parts that came unasked, as they travelled
    up: list[FeedbackState] = field(default_factory=list)  # by shard, where gradients are compressed
    down: list[FeedbackState] = field(default_factory=list)  # by shard, where models are


@dataclass(frozen=True, kw_only=True)
class KofP(ServerStrategy[Any], TakesJoiners):
    """What the four kinds share. Learners push gradients and take models; they update nothing themselves.

    k: K, larger = fewer and better updates. rate: what staleness or speed does to the learning rate; None: nothing.
    shards: servers that divide the model.
    compressor, feedback: of gradients on their way up, as in CompressedGradient; down: of models on their way down.

    A learner is used as often as it pushes. Where learners differ in speed and in data, the model therefore settles at
    the minimum of a speed-weighted mean of their losses, unless an update waits for all; ``rate=RescaledRate()`` and
    ``Ringleader`` correct this.
    """

    waits: ClassVar[bool]  # whether a learner idles from its push to the update; else any mini-batch counts
    has_k: ClassVar[bool] = True  # whether k may be adapted

    k: int
    rate: Rate | None = None
    shards: int = 1
    compressor: Compressor | None = None
    feedback: Feedback | None = None
    down: Compressor | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(
            isinstance(self.k, int) and self.k >= 1, f"k={self.k} must be a whole number, at least 1: one gradient."
        )
        require(isinstance(self.shards, int) and self.shards >= 1, f"shards={self.shards} must be at least 1.")
        require(
            self.rate is None or isinstance(self.rate, Rate),
            f"rate={self.rate!r} must be a rate such as StalenessRate(c=0.0005); None keeps the learners' own.",
        )
        require(
            self.rate is None or not self.rate.needs_distance or self.shards == 1,
            f"{name}: {self.rate} needs the distance between whole models, which no shard knows; use shards=1.",
        )
        require(
            self.rate is None or not self.rate.needs_times or not self.cancels,
            f"{name} cancels slow learners, which {self.rate} cannot make up for; use KAsync or KBatchAsync.",
        )
        check_links(self.compressor, self.feedback, self.down)

    @property
    def answers(self) -> bool:
        """Whether each push is answered with a model; in K-batch-sync a learner goes on with the one it has."""
        return self.waits or not self.cancels

    @property
    def staleness_bound(self) -> int | None:
        """Updates that may come between a gradient's model and its use; None: any number."""
        return None

    def follows_speed(self, workers: int) -> bool:
        """Whether learners are used as often as they push: then, on split data, the model is trained towards the data
        of the fast ones.
        """
        waits_for_all = (self.waits and self.k >= workers) or self.staleness_bound == 0
        return not waits_for_all and not (self.rate is not None and self.rate.needs_times)

    # The learner.

    def init(self, worker: Worker) -> Learner:
        require(
            not self.waits or self.k <= worker.size,
            f"k={self.k} is more learners than workers={worker.size}; use k={worker.size} (synchronous) or less, or a batch kind.",
        )
        state = Learner([0] * self.shards)
        parts = [worker.parameters[begin:end] for begin, end in worker.layout.cut(self.shards)]
        if self.compressor is not None:
            state.up = [up(self, worker, part).begin(part) for part in parts]
        if self.down is not None:
            state.down = [knowing(down(self, worker, part), part) for part in parts]
        return state

    def before_step(self, worker: Worker, state: Learner) -> None:
        worker.skip_update()
        if not self.is_over(worker, state):
            self.push(worker, state, float("nan"))

    def push(self, worker: Worker, state: Learner, loss: float) -> None:
        """Give every shard its part of the gradient, and take the answers where there are any."""
        gradient, rate, weight = worker.gradient, worker.learning_rate, worker.weight
        for shard, (begin, end) in enumerate(worker.layout.cut(self.shards)):
            part = gradient[begin:end]
            body: Tensor | Update = part
            if self.compressor is not None:
                body = up(self, worker, part).closed(state.up[shard], part, weight, rate)
            push = ServerPush(state.pushes, state.versions[shard], rate, weight, loss, body)
            worker.network.send(server_address(shard), push)
        state.pushes += 1
        if self.answers:
            self._receive(worker, state, [0] if self.cancels else range(self.shards))

    def on_message(self, worker: Worker, state: Learner, source: int, message: Message) -> None:
        """The server needs this step no more: drop it and begin anew with its model."""
        assert isinstance(message, ServerRestart)
        state.fresh.append((message.version, message.body))
        if message.version > state.versions[0]:
            worker.abandon_step()

    def after_step(self, worker: Worker, state: Learner) -> None:
        while state.fresh:  # more may come while the other shards' parts are waited for
            self._take_fresh(worker, state, state.fresh[-1][0])
            self._receive(worker, state, ())

    def _receive(self, worker: Worker, state: Learner, shards: Iterable[int]) -> None:
        """Take the next model of each of ``shards``; in the sync kinds the others send theirs unasked, and none may be
        older than the first.
        """
        for shard in shards:
            self._receive_part(worker, state, shard)
        for shard in range(1, self.shards):
            while self.cancels and state.versions[shard] < state.versions[0]:
                self._receive_part(worker, state, shard)
        worker.set_model_version(min(state.versions))

    def _receive_part(self, worker: Worker, state: Learner, shard: int) -> None:
        _, model = worker.network.receive(ServedModel, source=server_address(shard))
        if shard == 0:
            self._take_fresh(worker, state, model.version)
        self._take(worker, state, shard, model.version, model.body)

    def _take_fresh(self, worker: Worker, state: Learner, version: int) -> None:
        """Take what came unasked up to ``version``, in the order in which it was sent: compressed models add up, none
        may be left out.
        """
        while state.fresh and state.fresh[0][0] <= version:
            self._take(worker, state, 0, *state.fresh.pop(0))

    def _take(self, worker: Worker, state: Learner, shard: int, version: int, body: Tensor | Update) -> None:
        begin, end = worker.layout.cut(self.shards)[shard]
        own = worker.parameters if self.shards == 1 else worker.parameters[begin:end]
        own.copy_(self._opened(worker, state, shard, body))
        state.versions[shard] = version

    def _opened(self, worker: Worker, state: Learner, shard: int, body: Tensor | Update) -> Tensor:
        """Return a part of a model in full."""
        if self.down is None:
            return in_full(body)
        if isinstance(body, Tensor):  # in full, to a learner that has just joined
            state.down[shard] = knowing(down(self, worker, body), body)
            return body
        known = state.down[shard]
        return down(self, worker, known.shared["sum"]).opened(known, body, 1.0)

    def join(self, worker: Worker, state: Learner) -> None:
        """One who comes in mid-run takes the model as it is."""
        for shard in range(self.shards):
            worker.network.send(server_address(shard), ServerAsk(is_joining=True))
        self._receive(worker, state, range(self.shards))

    def finish(self, worker: Worker, state: Learner) -> None:
        for shard in range(self.shards):
            worker.network.send(server_address(shard), ServerLeave())

    def reported(self, worker: Worker, state: Learner) -> Tensor:
        """The servers' model as it is now; asking changes nothing."""
        for shard in range(self.shards):
            worker.network.send(server_address(shard), ServerAsk())
        shown = [worker.network.receive(ShownModel, source=server_address(shard))[1] for shard in range(self.shards)]
        return torch.cat([part.body for part in shown])

    def is_over(self, worker: Worker, state: Learner) -> bool:
        """Whether the last update is made."""
        return worker.steps is not None and min(state.versions) >= worker.steps

    # The server.

    def init_server(self, server: Server) -> ServerState:
        return ServerState(self.k, has_left=[False] * server.size)

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size  # a life begins with everybody, however many an earlier one had
        ParameterServer(self, server, state).serve()

    def dismiss(self, server: Server, state: ServerState) -> None:
        ParameterServer(self, server, state).dismiss()


@dataclass(frozen=True, kw_only=True)
class KSync(KofP):
    """Update with the first K learners' gradients and cancel the others: never stale, and nobody waits for the slowest."""

    cancels: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    handles = (ServerRestart,)


@dataclass(frozen=True, kw_only=True)
class KBatchSync(KofP):
    """Update with the first K mini-batches from anyone, all taken at one model, and cancel what is unfinished."""

    cancels: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    handles = (ServerRestart,)


@dataclass(frozen=True, kw_only=True)
class Stale(KofP):
    """What the two async kinds share.

    maximum_staleness: updates that may come between a gradient's model and its use; fast learners wait for slow ones to
    keep to it.
    """

    maximum_staleness: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.maximum_staleness is None or self.maximum_staleness >= 0,
            f"maximum_staleness={self.maximum_staleness} must be at least 0; None sets no bound.",
        )

    @property
    def staleness_bound(self) -> int | None:
        return self.maximum_staleness


@dataclass(frozen=True, kw_only=True)
class KAsync(Stale):
    """Update with K learners' gradients and let the others go on at their old model; k=1 is plain asynchronous SGD."""

    waits: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class KBatchAsync(Stale):
    """Update with K mini-batches from anyone, while nobody ever waits or is cancelled: the fastest pace, with stale
    gradients.
    """

    waits: ClassVar[bool] = False
