"""A server's copy of the model, or of its shard's part, with optimizers like rank 0's; and the server's loop."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.state_io import restore, store
from tacit.core.strategy import ServerStrategy
from tacit.core.worker import Server
from tacit.session import checkpoint_files
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.steps.optimizers import Optimizers
from tacit.strategies.vector_checks import has_wrong_numbers


class KeptModel(NamedTuple):
    """A copy of a model during the run, to be evaluated after it."""

    updates: int
    time_s: float
    parameters: Tensor


def packed_models(kept: Sequence[KeptModel]) -> bytes:
    """Return kept models as bytes."""
    file, models = io.BytesIO(), [one.parameters.numpy() for one in kept]
    at, times_s = np.array([one.updates for one in kept], np.int64), np.array([one.time_s for one in kept])
    np.savez(file, at=at, time_s=times_s, models=np.stack(models) if models else np.zeros((0, 0)))
    return file.getvalue()


def unpacked_models(data: bytes) -> list[KeptModel]:
    """Return what ``packed_models`` packed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        models = torch.from_numpy(stored["models"])
        return [KeptModel(int(a), float(t), m) for a, t, m in zip(stored["at"], stored["time_s"], models, strict=True)]


class ServerModel:
    """A server's part of the model, as one flat vector, and its optimizers.

    parameters: the vector; it is updated in place. split: returns the views of such a vector, one per parameter tensor.
    make_optimizers: makes the optimizers for these parameters. first_rate: learning rate of the first parameter group
    of the whole model; None: of these optimizers. schedule: factor on learning rates for an update without its own.
    """

    def __init__(
        self,
        parameters: Tensor,
        split: Callable[[Tensor], list[Tensor]],
        make_optimizers: Callable[[list[nn.Parameter]], Optimizers],
        *,
        first_rate: float | None = None,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        self.parameters, self._split, self._schedule = parameters, split, schedule
        self._copies = [nn.Parameter(part) for part in split(parameters)]
        self._optimizers = make_optimizers(self._copies)
        self._first_rate = self._optimizers.learning_rate if first_rate is None else first_rate
        self._rates = [float(group["lr"]) for group in self._optimizers.param_groups]
        self.updates = 0
        self.every: int | None = None  # updates between copies that are kept for evaluation after the run
        self.kept: list[KeptModel] = []
        self.updated: Callable[[int], None] | None = None  # called with the number of updates after each

    @classmethod
    def of_session(cls, flat: FlatModel, optimizers: Optimizers, shards: int = 1, shard: int = 0) -> ServerModel:
        """Return a copy of a shard's part of ``flat``, with optimizers of the classes and groups of those given."""
        begin, end = flat.layout.cut(shards)[shard]
        inside = [slot.parameter for slot in flat.slots if begin <= slot.start < end]

        def alike(copies: list[nn.Parameter]) -> Optimizers:
            own = {id(mine): copy for mine, copy in zip(inside, copies, strict=True)}
            made = []
            for optimizer in optimizers:
                groups = [
                    {**group, "params": [own[id(p)] for p in group["params"] if id(p) in own]}
                    for group in optimizer.param_groups
                ]
                groups = [group for group in groups if group["params"]]
                if groups:
                    made.append(type(optimizer)(groups))  # type: ignore[call-arg]
            return Optimizers(made)

        parameters, rate = flat.vector()[begin:end].clone(), optimizers.learning_rate
        return cls(parameters, lambda vector: flat.split(vector, begin, end), alike, first_rate=rate)

    @torch.no_grad()
    def update(
        self, gradient: Tensor, learning_rate: float | None, now_s: float, *, uses_optimizer: bool = True
    ) -> None:
        """Apply the optimizers, or subtract ``gradient``; count the update.

        ``learning_rate`` is that of the first group; the others keep their ratio to it.
        """
        if uses_optimizer:
            self._optimize(gradient, learning_rate)
        else:
            self.parameters.sub_(gradient.to(self.parameters))
        self.updates += 1
        if self.every is not None and self.updates % self.every == 0:
            self.kept.append(KeptModel(self.updates, now_s, self.parameters.to("cpu", copy=True)))
        if self.updated is not None:
            self.updated(self.updates)

    def _optimize(self, gradient: Tensor, learning_rate: float | None) -> None:
        if learning_rate is not None and self._first_rate:
            factor = learning_rate / self._first_rate
        else:
            factor = 1.0 if self._schedule is None else self._schedule(self.updates)
        for group, rate in zip(self._optimizers.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for copy, part in zip(self._copies, self._split(gradient.to(self.parameters)), strict=True):
            copy.grad = part
        for optimizer in self._optimizers:
            optimizer.step()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the state of the optimizers as torch does."""
        return self._optimizers.state_dict()

    def load_optimizer_state(self, stored: dict[str, Any]) -> None:
        self._optimizers.load_state_dict(stored)

    def parameter_order(self) -> list[int]:
        """Return the places of the parameter tensors in the order of the optimizers' groups, as torch numbers them."""
        places = {id(copy): place for place, copy in enumerate(self._copies)}
        return [places[id(p)] for group in self._optimizers.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, optimizer state and updates."""
        return {
            "parameters": self.parameters.clone(),
            "optimizer": self._optimizers.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.parameters.copy_(stored["parameters"])
        self._optimizers.load_state_dict(stored["optimizer"])
        self.updates = stored["updates"]


class ServerLoop:
    """The server's side of a strategy, in either world: its state, serving, dismissing its learners."""

    def __init__(self, strategy: ServerStrategy[Any], model: ServerModel) -> None:
        self._strategy, self._model, self._state = strategy, model, None
        self._stored: dict[str, Any] | None = None

    def run(self, server: Server) -> None:
        """Serve until the last update, then dismiss the learners."""
        self._state = self._strategy.init_server(server)
        if self._stored is not None:
            self._state = restore(self._state, self._stored, None)
        self._strategy.serve(server, self._state)
        self._strategy.dismiss(server, self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of server and model; gradients that learners compute now are not part of it."""
        return {"model": self._model.state_dict(), "state": store(self._state)}

    def write_part(self, folder: str, shard: int, version: int) -> str:
        """Write the state of ``shard`` for the checkpoint of ``version``; return the error, or an empty text."""
        path = checkpoint_files.place_of(Path(folder), version) / checkpoint_files.server_file(shard)
        if has_wrong_numbers(self._model.parameters):
            return checkpoint_files.NOT_FINITE
        return checkpoint_files.save_shard(path, {"strategy": str(self._strategy), **self.state_dict()})

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned. Call it before ``run``."""
        self._model.load_state_dict(stored["model"])
        self._stored = stored["state"]
