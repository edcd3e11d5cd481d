"""Base classes: a workload is a description; opened for a number of workers, it becomes a problem to train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.parameter_layout import Layout
from tacit.core.randomness import Streams
from tacit.core.specs import Parameters, spell_class, spell_fields

Token = Any
"""Indices of one mini-batch, usually row numbers, which ``collate`` turns into tensors."""

Tokens = Any
"""Tokens of consecutive mini-batches: a list, or an array of which they are the rows."""

GRADIENT_BUDGET = 50_000_000
"""Largest samples times parameters for which every evaluation includes the norm of the full gradient."""


class Sampler(Protocol):
    """One worker's mini-batches, without end, drawn from its own random stream."""

    @property
    def batch_size(self) -> int:
        """Samples in each of its mini-batches: the same for all, so that equal sizes can be evaluated together."""

    def take(self, count: int) -> Tokens:
        """Return the next ``count`` mini-batches; called often, so it must be cheap."""


class Evaluation(NamedTuple):
    """A model measured on all data: training loss, squared norm of its gradient if cheap, metric on held-out data."""

    loss: float
    gradient_norm_squared: float | None
    metric: float | None


class Problem(ABC):
    """A workload split over workers. ``module(*batch)`` is the mean loss of a mini-batch.

    The module's parameters, in order, are the flat vector; as ``open`` leaves them, they are the start of a run.
    """

    module: nn.Module
    samplers: Sequence[Sampler]  # one per rank
    batch_size: int  # the nominal one: a batch of this size has weight 1
    model_path: str = ""  # where in ``module`` the model lies that makes predictions, without its loss
    metric_name: str | None = None
    sample_numbers: int | None = None  # numbers in one sample's input, where that means something

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "collate" in vars(cls) and "gather" not in vars(cls):
            cls.indices = Problem.indices  # type: ignore[method-assign]  # those of a base class describe other batches

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    @abstractmethod
    def collate(self, ranks: Sequence[int], tokens: Sequence[Token]) -> tuple[Tensor, ...]:
        """Return the mini-batches of several workers, all of one size, stacked along a new first dimension."""

    def indices(self, ranks: Sequence[int], tokens: Sequence[Token]) -> NDArray[np.int64] | None:
        """Return an array, one row per rank, from which ``gather`` makes the mini-batches that ``collate`` returns.

        Samplers may return arrays of tokens. With one such array per rank, all of one length, in place of ``tokens``,
        the second dimension of the result counts the mini-batches of a rank. None: the problem has ``collate`` alone.
        """
        return None

    def gather(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the mini-batches of ``indices``, a tensor on the device of the data.

        A CUDA graph may contain the call: it consists of torch operations of fixed shapes on the device, without a
        synchronisation, and every call uses the same tensors of data.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gather(); use collate().")

    @abstractmethod
    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        """Measure the model with flat ``parameters`` on all training data and on held-out data if any."""

    def losses(
        self, models: Tensor, buffers: dict[str, Tensor] | None = None, *, is_batched: bool = False
    ) -> list[float]:
        """Return, to rounding, the loss that ``evaluate`` measures for each row of ``models``.

        is_batched: whether ``torch.func.vmap`` can run the module, so that one call may contain several models.
        """
        return [self.evaluate(model, buffers).loss for model in models]

    def to(self, device: torch.device) -> None:
        """Move module and data to ``device``."""
        self.module.to(device)


class Workload(Parameters, ABC):
    """Base class of workloads: a frozen description of model, loss, data and split.

    Derive a frozen keyword-only dataclass. Override ``name`` and ``open``, which loads the data and returns a
    ``tacit.workloads.Problem``; nothing is loaded before. For a model and tensors of your own,
    ``tacit.workloads.custom`` needs no class. On the command line, a function with the annotation ``-> Workload`` is
    also read.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Valley(tacit.Workload):
    ...     dimension: int = 3
    ...     name = "valley"
    ...     def open(self, workers, streams):
    ...         return tacit.workloads.quadratic(dimension=self.dimension).open(workers, streams)
    >>> tacit.simulate(Valley(dimension=2), tacit.AllReduce(), steps=5).parameters.shape
    torch.Size([2])
    """

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def is_shuffled(self) -> bool | None:
        """Whether all workers draw from one distribution; None where that is not known."""
        split = getattr(self, "split", None)
        return None if split is None else bool(split == "shuffled")

    @abstractmethod
    def open(self, workers: int, streams: Streams) -> Problem:
        """Load the data, split it over ``workers`` and build the model, all random choices from ``streams``."""

    def __str__(self) -> str:
        spelled = spell_class(type(self))
        return f"{spelled if ':' in spelled else self.name}({spell_fields(self)})"
