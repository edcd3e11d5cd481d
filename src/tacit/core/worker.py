"""One replica as a strategy sees it: flat parameters, the gradient on request, counters, its random stream, its
network.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from tacit.core.network import Network
from tacit.core.parameter_layout import Layout


class ObservedLosses(NamedTuple):
    """What a worker saw since it was last asked: how much data, and the mini-batch losses where somebody told them."""

    steps: int
    weight: float  # the sum of the steps' weights
    first_loss: float | None  # of the first of these steps that was not skipped; None: not observed in that step
    loss: float | None  # their mean


class Worker(Protocol):
    """What hooks and handlers may touch. A worker is a monitor: one of its hooks and handlers runs at a time."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def network(self) -> Network: ...

    @property
    def parameters(self) -> Tensor:
        """All parameters as one flat vector; write to it in place. Not for handlers."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters within the flat vector."""

    @property
    def gradient(self) -> Tensor:
        """This step's gradient as one flat vector, gathered when asked for; assign to replace it.

        Only in ``before_step``.
        """

    @gradient.setter
    def gradient(self, value: Tensor) -> None: ...

    @property
    def step(self) -> int:
        """Completed steps: in ``before_step`` those before this one, in ``after_step`` this one included."""

    @property
    def steps(self) -> int | None:
        """How many steps the run will take, where that is known."""

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate in the current step (of the first parameter group)."""

    @property
    def weight(self) -> float:
        """Samples behind this step's gradient, relative to the nominal batch: 1.0 where all batches are equal."""

    @property
    def random(self) -> np.random.Generator:
        """This rank's stream for the strategy's own draws."""

    @property
    def shared_random(self) -> np.random.Generator:
        """A stream that yields the same draws on every rank."""

    def take_observed(self) -> ObservedLosses:
        """Return what was seen since the last call, and begin anew."""

    def report_total_weight(self, total_weight: float) -> None:
        """Tell the world Σ of all ranks' weights in an exchange that carried them itself (all-reduces tell it unasked):
        at 0 all data has ended.
        """

    def average_extra_state(self, weight: float) -> None:
        """Average what travels beside models (buffers, moments where asked) after a round that took no all-reduce, on
        which it rides unasked.
        """

    def set_model_version(self, updates: int) -> None:
        """Set the version of the model that this worker holds: its number of updates on the server.

        In server strategies, schedules and progress count these updates.
        """

    def skip_update(self) -> None:
        """Leave parameters and optimizer state untouched in this step. Only in ``before_step``."""

    def abandon_step(self) -> None:
        """Drop the gradient being computed: ``before_step`` and the update are left out, ``after_step`` follows.

        For handlers.
        """

    def note(self, name: str, value: float) -> None:
        """Put a number into the trace, for tables and figures."""


class Server(Protocol):
    """The second endpoint of server strategies: its own copy of the model, its own state, never rank 0's worker.

    With several shards there are as many, each with its part of the model (``Layout.cut``). Its ``receive`` from
    anybody raises ``PeerLost`` once for each worker that is lost, so that it can go on without.
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
        """Whether this world knows how data are split over learners, and warns of what follows before the run."""

    def now_s(self) -> float:
        """Return the time on the run's clock at which the last message was received: the same in a run and in its
        replay.
        """

    def update(self, gradient: Tensor, learning_rate: float | None = None) -> None:
        """Apply rank 0's optimizer to the server's model with ``gradient``: one update, counted and evaluated."""

    def note(self, name: str, value: float, about: int | None = None) -> None:
        """Put a number into the trace, perhaps one about a worker."""
