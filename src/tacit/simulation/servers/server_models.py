"""The servers' models in a simulation of a workload: ``ServerModel``, with the optimizer of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tacit.core.parameter_layout import Layout
from tacit.session.server_model import ServerModel
from tacit.session.steps.optimizers import Optimizers
from tacit.training.optimizers import Factory


def server_models(
    model: Tensor, shards: int, layout: Layout, factory: Factory, schedule: Callable[[int], float]
) -> list[ServerModel]:
    """Return the model of each shard: a view into ``model``, with an optimizer like the workers'."""
    return [
        _server_model(model[begin:end], layout.part(shards, shard), factory, schedule)
        for shard, (begin, end) in enumerate(layout.cut(shards))
    ]


def _server_model(
    parameters: Tensor, layout: Layout, factory: Factory, schedule: Callable[[int], float]
) -> ServerModel:
    def split(vector: Tensor) -> list[Tensor]:
        return list(layout.split(vector).values())

    def optimizers(own: list[nn.Parameter]) -> Optimizers:
        return Optimizers([factory(own)])

    return ServerModel(parameters, split, optimizers, schedule=schedule)


def optimizer_state(model: ServerModel) -> dict[str, Any]:
    """Return the state of a simulated server's optimizer. Hyperparameters belong to the run and are not part of it."""
    return {"state": model.optimizer_state()["state"]}


def load_optimizer_state(model: ServerModel, stored: dict[str, Any]) -> None:
    """Restore the state of a simulated server's optimizer; also in the two formats of version 0.1."""
    if "optimizers" in stored:  # 0.1, for optimizers that are not elementwise
        [stored] = stored["optimizers"]
    state = _from_rows(model, stored) if "counts" in stored else stored["state"]
    model.load_optimizer_state({**model.optimizer_state(), "state": state})


def _from_rows(model: ServerModel, stored: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the state that version 0.1 stored by parameter name, as one row of a matrix, in torch's form."""
    names = list(stored["state"])  # in the order of the layout, like the parameters of ``model``
    scalars = stored["scalars"].get(stored["counts"][0], {})
    tensors = {name: {key: value[0] for key, value in stored["state"][name].items()} for name in names}
    return {
        index: {**tensors[names[place]], **scalars.get(names[place], {})}
        for index, place in enumerate(model.parameter_order())
        if tensors[names[place]] or scalars.get(names[place])
    }
