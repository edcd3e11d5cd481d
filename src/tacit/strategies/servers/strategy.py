"""The base class of the strategies with a parameter server: fields, their checks, and the hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback.feedback import Feedback
from tacit.core.compatibility.renamed_fields import renamed_from
from tacit.core.messages import Message
from tacit.core.strategy import ServerStrategy, TakesJoiners
from tacit.core.worker import Server, Worker
from tacit.errors import require
from tacit.strategies.servers.learner import Learner, LearnerState
from tacit.strategies.servers.messages import ServerRestart
from tacit.strategies.servers.parts.channels import check_compression
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.rates import Rate
from tacit.strategies.servers.server import ParameterServer


@dataclass(frozen=True, kw_only=True)
class ParameterServerStrategy(ServerStrategy[Any], TakesJoiners):
    """Base class of the four kinds: learners push gradients and receive models; only the server updates.

    k: K, larger = fewer and better updates. rate: rule for the learning rate of a gradient by its staleness or its
    learner's speed; None: the learner's own rate. shards: number of servers among which the model is divided.
    compressor, feedback: for gradients, as in CompressedGradient. model_compressor: for models.

    The server uses a learner's gradients as often as the learner pushes. If learners differ in speed and in data, the
    model converges to the minimum of a speed-weighted mean of their losses, unless each update waits for all learners;
    ``rate=RescaledRate()`` and ``Ringleader`` correct this.
    """

    waits_for_update: ClassVar[bool]  # whether a learner idles from its push to the update; else any mini-batch counts
    has_adjustable_k: ClassVar[bool] = True  # whether AdaSync may change k
    keeps_shards: ClassVar[bool] = True

    k: int
    rate: Rate | None = None
    shards: int = 1
    compressor: Compressor | None = None
    feedback: Feedback | None = None
    model_compressor: Compressor | None = field(default=None, metadata=renamed_from("down"))

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(isinstance(self.k, int) and self.k >= 1, f"k={self.k} must be a whole number, at least 1.")
        require(isinstance(self.shards, int) and self.shards >= 1, f"shards={self.shards} must be at least 1.")
        require(
            self.rate is None or isinstance(self.rate, Rate),
            f"rate={self.rate!r} must be a rate such as StalenessRate(c=0.0005), or None for the learners' own rates.",
        )
        require(
            self.rate is None or not self.rate.needs_distance or self.shards == 1,
            f"{name}: {self.rate} needs the distance between whole models, which a shard does not have; use shards=1.",
        )
        require(
            self.rate is None or not self.rate.needs_times or not self.cancels,
            f"{name} cancels slow learners, which {self.rate} cannot correct; use KAsync or KBatchAsync.",
        )
        check_compression(self.compressor, self.feedback, self.model_compressor)

    @property
    def answers_pushes(self) -> bool:
        """Whether the server answers each push with a model. In K-batch-sync learners continue at the one they have."""
        return self.waits_for_update or not self.cancels

    @property
    def staleness_bound(self) -> int | None:
        """Largest number of updates between a gradient's model and its use; None: no bound."""
        return None

    def drops(self, staleness: int) -> bool:
        """Return whether a gradient that arrives so many updates after its model is not used."""
        return self.cancels and staleness > 0

    @property
    def pushes_changes(self) -> bool:
        """Whether learners push changes of their model after local steps, instead of gradients."""
        return False

    def is_speed_biased(self, workers: int) -> bool:
        """Whether fast learners are used more often, so that on split data the model fits their data better."""
        waits_for_all = (self.waits_for_update and self.k >= workers) or self.staleness_bound == 0
        return not waits_for_all and not (self.rate is not None and self.rate.needs_times)

    def check_workers(self, workers: int) -> None:
        """Raise if a run with so many learners would never make an update."""
        require(
            not self.waits_for_update or self.k <= workers,
            f"k={self.k} is more learners than workers={workers}; use k={workers} (synchronous) or less, "
            f"or a batch kind.",
        )

    # The learner's hooks.

    def init(self, worker: Worker) -> LearnerState:
        self.check_workers(worker.size)
        return Learner.init(self, worker)

    def before_step(self, worker: Worker, state: LearnerState) -> None:
        worker.skip_update()
        learner = Learner(self, worker, state)
        if not learner.is_done:
            learner.push()

    def after_step(self, worker: Worker, state: LearnerState) -> None:
        Learner(self, worker, state).apply_restarts()

    def on_message(self, worker: Worker, state: LearnerState, source: int, message: Message) -> None:
        assert isinstance(message, ServerRestart)
        Learner(self, worker, state).restart(source, message)

    def join(self, worker: Worker, state: LearnerState) -> None:
        Learner(self, worker, state).join()

    def finish(self, worker: Worker, state: LearnerState) -> None:
        Learner(self, worker, state).leave()

    def reported(self, worker: Worker, state: LearnerState) -> Tensor:
        return Learner(self, worker, state).server_model()

    # The server's hooks.

    def init_server(self, server: Server) -> ServerState:
        return ServerState(self.k, has_left=[False] * server.size)

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size  # a resumed run starts with all learners
        ParameterServer(self, server, state).serve()

    def dismiss(self, server: Server, state: ServerState) -> None:
        ParameterServer(self, server, state).dismiss()
