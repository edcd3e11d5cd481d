"""Checks of what servers send: a model that does not fit is refused before it changes the learner's."""

from __future__ import annotations

import weakref
from typing import Final

import torch
from torch import Tensor

from tacit.core.network import SERVER
from tacit.core.worker import Worker, is_timing_only
from tacit.errors import BadMessage
from tacit.strategies.servers.messages import ServedModel, ServerRestart
from tacit.strategies.vector_checks import is_too_large


def check_restart(source: int, message: ServerRestart, worker: Worker, numbers: int, earliest: int) -> None:
    """Raise ``BadMessage`` unless ``message`` can be the next restart. For handlers, which may not use the parameters.

    earliest: version of the one before.
    """
    if source != SERVER:
        raise BadMessage(f"a {type(message).__name__} arrived from {source}, which may not send it.")
    if message.version < earliest:
        raise BadMessage(f"a model at version {message.version} arrived after one at {earliest}.")
    check_model(message, worker, numbers)
    if isinstance(message.body, Tensor):
        check_numbers(message.body, worker, is_final=message.is_owned)


def check_model(model: ServedModel | ServerRestart, worker: Worker, numbers: int) -> None:
    """Raise ``BadMessage`` unless ``model`` has a possible version, and ``numbers`` numbers or none."""
    if model.version < 0 or (worker.steps is not None and model.version > worker.steps):
        raise BadMessage(f"a model at version {model.version} arrived in a run of {worker.steps} updates.")
    if isinstance(model.body, Tensor) and model.body.numel():
        check_vector(model.body, numbers)


def check_vector(body: Tensor, numbers: int) -> None:
    """Raise ``BadMessage`` unless ``body`` is a vector of ``numbers`` floating-point numbers."""
    if body.shape != (numbers,) or not body.is_floating_point():
        raise BadMessage(f"a model of {tuple(body.shape)} numbers of {body.dtype} arrived for {numbers} parameters.")


def check_numbers(body: Tensor, worker: Worker, dtype: torch.dtype | None = None, *, is_final: bool = False) -> None:
    """Raise ``BadMessage`` if ``body``, in ``dtype``, contains NaN, infinity or too large numbers.

    is_final: it never changes. Simulated learners get the same model, which the first of them checks for all.
    """
    dtype = dtype or body.dtype
    if type(body) is not Tensor or is_timing_only(worker) or (is_final and _LATEST.holds(body, dtype)):
        return
    if is_too_large(body.to(dtype), 1.0):
        raise BadMessage("a model arrived that contains NaN, infinity or too large numbers.")
    if is_final:
        _LATEST.keep(body, dtype)


class _LatestModel:
    """The tensor that was checked last, as long as it exists."""

    def __init__(self) -> None:
        self._checked: tuple[weakref.ref[Tensor], torch.dtype] | None = None

    def holds(self, body: Tensor, dtype: torch.dtype) -> bool:
        checked = self._checked  # another thread may replace it
        return checked is not None and checked[0]() is body and checked[1] == dtype

    def keep(self, body: Tensor, dtype: torch.dtype) -> None:
        self._checked = weakref.ref(body), dtype


_LATEST: Final = _LatestModel()
