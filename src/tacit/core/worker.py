"""The worker and the server as a strategy sees them: parameters, gradient, counters, random streams, network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from tacit.core.network import Gathered, MessageType, Network
from tacit.core.parameter_layout import Layout

VectorMean = Callable[[Tensor, float], Tensor]
"""Returns the mean over all ranks of a vector, given this rank's weight."""


class ObservedLosses(NamedTuple):
    """The amount of data and the mini-batch losses of a worker since the last call of ``take_observed``."""

    steps: int
    weight: float  # the sum of the steps' weights
    first_loss: float | None  # of the first of these steps that was not skipped; None: not observed in that step
    loss: float | None  # the mean loss; None: not observed


class Worker(Protocol):
    """A worker, as hooks and handlers may use it. Only one of its hooks and handlers runs at a time."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def network(self) -> Network: ...

    @property
    def parameters(self) -> Tensor:
        """All parameters as one flat vector, to be changed in place. Handlers must not use it."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters in the flat vector."""

    @property
    def gradient(self) -> Tensor:
        """This step's gradient as one flat vector, gathered on access; assign to replace it.

        Only in ``before_step``.
        """

    @gradient.setter
    def gradient(self, value: Tensor) -> None: ...

    @property
    def step(self) -> int:
        """Completed steps: in ``before_step`` those before this one, in ``after_step`` this one included."""

    @property
    def steps(self) -> int | None:
        """Number of steps of the run; None if it is not known."""

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate in the current step, of the first parameter group."""

    @property
    def weight(self) -> float:
        """Number of samples of this step, relative to the nominal batch: 1.0 if all batches are equal."""

    @property
    def random(self) -> np.random.Generator:
        """The strategy's random stream of this rank."""

    @property
    def shared_random(self) -> np.random.Generator:
        """The strategy's random stream with the same draws on all ranks."""

    def take_observed(self) -> ObservedLosses:
        """Return the data and losses observed since the last call."""

    def report_total_weight(self, total_weight: float) -> None:
        """Report the sum of all ranks' weights in an exchange that is not an all-reduce; at 0 all data has ended."""

    def average_extra_state(self, weight: float, mean: VectorMean | None = None) -> None:
        """Average the extra state (buffers, optimizer moments if enabled) after a round without an all-reduce of it.

        An all-reduce of all ranks averages it in the same collective.

        mean: returns the mean over all ranks of a vector with this rank's weight; None: an all-reduce of all ranks.
        """

    def set_model_version(self, updates: int) -> None:
        """Set the version of the model that this worker holds: its number of updates on the server.

        In server strategies, schedules and progress count these updates.
        """

    def skip_update(self) -> None:
        """Leave parameters and optimizer state untouched in this step. Only in ``before_step``."""

    def abandon_step(self) -> None:
        """Abandon the step in progress: ``before_step`` and the update do not run, ``after_step`` does.

        For handlers.
        """

    def spend(self, what: str, numbers: int) -> None:
        """Account for work that this hook has just done on ``numbers`` numbers.

        what: "encode", "decode", "flatten" or "divide", maybe followed by the name of a compressor ("encode TopK").
        On real processes the time since the hook's last event is recorded as this work. The simulator lets the time of
        ``Cluster.costs`` pass. All-reduces and deferred messages account for their own work.
        """

    def now_s(self) -> float:
        """Return the time on the run's clock when all work given to this worker's device has ended.

        Virtual in the simulator. Evaluations and checkpoints take no time on it.
        """

    def note(self, name: str, value: float) -> None:
        """Record a number in the trace, for tables and figures."""


class AllWorkers(Protocol):
    """All workers of a simulation in the same hook (``ActsForAll``)."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers, by rank. They communicate in ``all_gather`` alone."""

    @property
    def gradients(self) -> Tensor:
        """The gradients of this step, one row per worker, to be changed in place."""

    def spend(self, what: str, numbers: int) -> None:
        """Account for work that every worker has done, as ``Worker.spend`` does."""

    def all_gather(self, make: Callable[[], Sequence[MessageType]]) -> Gathered[MessageType]:
        """Return the messages of all workers, in rank order.

        make: returns them; called when all workers have joined, that is after the work that they spent time on.
        """


def is_timing_only(endpoint: object) -> bool:
    """Return whether only time and bytes of a worker or server are simulated, so that contents have no effect.

    A world without such a mode need not define the attribute.
    """
    return bool(getattr(endpoint, "is_timing_only", False))


class Server(Protocol):
    """The server of a server strategy, with its own copy of the model; not a worker.

    With several shards each is a server with its part of the model (``Layout.cut``). ``receive`` from any source raises
    ``PeerLost`` once for each lost worker, so that the server can continue without it.
    """

    @property
    def size(self) -> int: ...

    @property
    def shard(self) -> int: ...

    @property
    def network(self) -> Network: ...

    @property
    def parameters(self) -> Tensor: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def random(self) -> np.random.Generator: ...

    @property
    def knows_split(self) -> bool:
        """Whether this world knows how data are split over workers, and warns of a bias before the run."""

    def now_s(self) -> float:
        """Return when the last message was received, on the run's clock; the same in a run and in its replay."""

    def update(self, gradient: Tensor, learning_rate: float | None = None, *, uses_optimizer: bool = True) -> None:
        """Make one update of the server's model with ``gradient`` and an optimizer like rank 0's.

        Without ``uses_optimizer`` the update is w ← w − ``gradient``, and the optimizer is unchanged.
        """

    def note(self, name: str, value: float, about: int | None = None) -> None:
        """Record a number in the trace; ``about``: the worker that it is about."""

    def write_part(self, folder: str, version: int) -> str:
        """Write this shard's part of the checkpoint of ``version`` into ``folder``; return the error, or an empty text.

        Only for a server of a session.
        """
