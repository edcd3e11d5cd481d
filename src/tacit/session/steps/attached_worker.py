"""The worker of an attached model: the user's model and optimizer behind the ``Worker`` protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.core.randomness import Streams
from tacit.core.strategy import Strategy, check_cancels
from tacit.core.weights import SKIPPED_WEIGHT
from tacit.core.worker import ObservedLosses, VectorMean
from tacit.errors import MisplacedCall
from tacit.session.backend import SessionBackend
from tacit.session.model.extra_state import NetworkWithExtraState
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.steps.finite_checks import require_finite
from tacit.session.steps.observed_losses import LossMeter
from tacit.session.steps.optimizers import Optimizers


class AttachedWorker:
    """The ``Worker`` that a session passes to hooks."""

    def __init__(
        self,
        backend: SessionBackend,
        network: NetworkWithExtraState,
        model: FlatModel,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        steps: int | None,
        seed: int,
    ) -> None:
        self._backend, self._step_context = backend, backend.step
        self._model, self._optimizers, self._strategy = model, optimizers, strategy
        self.rank, self.size, self.network, self.steps = backend.rank, backend.size, network, steps
        streams = Streams(seed)
        self.random: np.random.Generator = streams.numpy("strategy", backend.rank)
        self.shared_random: np.random.Generator = streams.numpy("shared")
        self.meter = LossMeter(backend.rank)
        self.period: float | None = None  # that the strategy has noted last
        self.updates = 0  # of the server's model that this worker holds, in server strategies
        self.has_no_data = False  # its data has ended: it joins the others' rounds with weight 0
        self.has_stale_gradient = False  # of a model that another worker's state has replaced in this step
        self.scaler_skips = False  # the GradScaler found an overflow in this step
        self.update_is_skipped = False
        self.gradient_was_set = False
        self.must_be_finite = backend.size > 1  # gradients and models that may be sent

    @property
    def parameters(self) -> Tensor:
        if self._backend.is_handling:
            raise MisplacedCall("a handler may not touch worker.parameters; work on tensors of the state instead.")
        return self._model.vector()

    def check_model(self) -> None:
        """Raise ``NotFinite`` if the model, which a hook may send, contains NaN or infinity."""
        if self.must_be_finite and not self._strategy.has_server:
            require_finite(self.rank, self.step, "model", self._model.vector(), self.layout)

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def gradient(self) -> Tensor:
        gradient = self._model.gather_gradient()
        if self.has_no_data or self.has_stale_gradient or self.scaler_skips:
            return gradient.zero_()
        if self.must_be_finite:
            require_finite(self.rank, self.step + 1, "gradient", gradient, self.layout)
        return gradient

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
        if self.has_no_data or self.has_stale_gradient:
            return 0.0
        return SKIPPED_WEIGHT if self.scaler_skips else self.meter.weight

    def take_observed(self) -> ObservedLosses:
        return self.meter.take()

    def report_total_weight(self, total_weight: float) -> None:
        self._step_context.total_weight = total_weight

    def average_extra_state(self, weight: float, mean: VectorMean | None = None) -> None:
        self.network.average_extra_state(self._model.vector(), weight, mean)

    def set_model_version(self, updates: int) -> None:
        self.updates = updates

    def skip_update(self) -> None:
        self.update_is_skipped = True

    def abandon_step(self) -> None:
        check_cancels(self._strategy)
        self._step_context.abandon()

    def spend(self, what: str, numbers: int) -> None:
        self._step_context.spend(what, numbers)

    def now_s(self) -> float:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return self._backend.now_s()

    def note(self, name: str, value: float) -> None:
        if name == "period":
            self.period = value
        self._backend.trace.note(self.rank, self._backend.now_s(), name, value)
