"""One worker of an attached run, as strategies see it: the user's own model and optimizer behind the ``Worker``
protocol.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.core.randomness import Streams
from tacit.core.strategy import Strategy, check_cancels
from tacit.core.worker import Observed
from tacit.errors import MisplacedCall
from tacit.record.trace import NOTE
from tacit.session.backend import Stage
from tacit.session.model.extra_state import RidingNetwork
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.steps.observed_losses import SKIPPED_WEIGHT, Meter
from tacit.session.steps.optimizers import Optimizers


class Replica:
    """The ``Worker`` that hooks are given."""

    def __init__(
        self,
        stage: Stage,
        network: RidingNetwork,
        model: FlatModel,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        steps: int | None,
        seed: int,
    ) -> None:
        self._stage, self._model, self._optimizers, self._strategy = stage, model, optimizers, strategy
        self.rank, self.size, self.network, self.steps = stage.rank, stage.size, network, steps
        streams = Streams(seed)
        self.random: np.random.Generator = streams.numpy("strategy", stage.rank)
        self.shared_random: np.random.Generator = streams.numpy("shared")
        self.meter = Meter(stage.rank)
        self.updates = 0  # behind the server's model that this worker holds, in server strategies
        self.is_ghost = False  # its data has ended: it joins the others' rounds with weight 0
        self.scaler_skips = False  # the GradScaler found an overflow in this step
        self.update_is_skipped = False
        self.is_abandoned = False
        self.gradient_was_set = False

    @property
    def parameters(self) -> Tensor:
        if self._stage.is_handling:
            raise MisplacedCall("a handler may not touch worker.parameters; work on tensors of the state instead.")
        return self._model.vector()

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def gradient(self) -> Tensor:
        gradient = self._model.gather_gradient()
        return gradient.zero_() if self.is_ghost or self.scaler_skips else gradient

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        self._model.scatter_gradient(value)
        self.gradient_was_set = True

    @property
    def step(self) -> int:
        return self.meter.step

    @property
    def learning_rate(self) -> float:
        return self._optimizers.learning_rate

    @property
    def weight(self) -> float:
        if self.is_ghost:
            return 0.0
        return SKIPPED_WEIGHT if self.scaler_skips else self.meter.weight

    def take_observed(self) -> Observed:
        return self.meter.take()

    def weighed(self, total_weight: float) -> None:
        self._stage.total_weight = total_weight

    def average_riders(self, weight: float) -> None:
        self.network.ride(self._model.vector(), weight)

    def follow(self, updates: int) -> None:
        self.updates = updates

    def skip_update(self) -> None:
        self.update_is_skipped = True

    def abandon_step(self) -> None:
        check_cancels(self._strategy)
        if self._stage.abandon():
            self.is_abandoned = True

    def note(self, name: str, value: float) -> None:
        now_s = self._stage.now_s()
        self._stage.trace.record(NOTE, self.rank, now_s, now_s, value=float(value), label=name)
