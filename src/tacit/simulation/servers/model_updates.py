"""The updates of a run without fibers: at once without models, else after the run, whose times they do not change.

A run on a fast path notes which gradients each update uses: the learner, the version of its model and the number of its
step. ``train`` then computes one model after another. The first use of a gradient evaluates all gradients at the models
so far that this and later updates use, in one call. Gradients that no update uses are not evaluated.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.simulation.engine.deferred import DeferredGradient
from tacit.simulation.engine.engine import Engine
from tacit.simulation.world import World
from tacit.strategies.servers.parts.averages import mean_gradient
from tacit.strategies.servers.parts.model_checks import check_numbers
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.strategy import ParameterServerStrategy


def needs_no_fibers(world: World, strategy: ParameterServerStrategy) -> bool:
    """Whether times do not depend on models, nothing fails, and ``ModelUpdates`` can compute what fibers would."""
    if world.is_resumed or world.cluster.faults or world.cluster.costs or world.fabric.processors:
        return False
    # Modules that run one by one may have random numbers and buffers, which gradients that are never used change, too.
    is_batched = world.engine.choice.engine != "loop"
    return world.is_timing or (is_batched and strategy.rate is None and world.evaluator.until_loss is None)


class ModelUpdates:
    """The updates of one run."""

    def __init__(self, world: World, k: int) -> None:
        self._world, self._server = world, world.servers[0]
        self._server.state = self._state = ServerState(k, has_left=[False] * self._server.size)
        self._times_s, self._counts = array("d"), array("q")  # by update: time, number of gradients
        self._uses = array("q")  # of each gradient: learner, version of its model, number of its step

    def add(self, now_s: float, uses: Sequence[tuple[int, int, int]]) -> None:
        """Add an update. uses: learner, version and step (from 1, with cancelled ones) of each gradient."""
        if self._world.is_timing:
            self._server.updates += 1
            self._world.agenda.now_s = now_s
            self._world.updated(self._server)
            return
        self._times_s.append(now_s)
        self._counts.append(len(uses))
        for use in uses:
            self._uses.extend(use)

    @torch.no_grad()
    def train(self) -> None:
        """After the run: compute the model of each update, and evaluate those that are due."""
        world, server, engine = self._world, self._server, self._world.engine
        if not isinstance(engine, Engine):
            return
        end_s, first, updates = world.agenda.now_s, 0, len(self._times_s)
        ranks, versions, _ = uses = np.array(self._uses).reshape(-1, 3).T
        by_version = np.argsort(versions, kind="stable")
        bounds = np.searchsorted(versions[by_version], np.arange(updates + 1))
        gradients = Gradients(engine, uses)
        for version, (now_s, count) in enumerate(zip(self._times_s, self._counts, strict=True)):
            world.agenda.now_s = now_s
            gradients.begin(version, by_version[bounds[version] : bounds[version + 1]].tolist(), server.parameters)
            places = sorted(range(first, first + count), key=ranks.__getitem__)
            first += count
            server.model.update(*gradients.mean(places), now_s)
            server.updates, self._state.version = version + 1, version + 1
            world.updated(server)
            if server.updates < updates:
                check_numbers(server.parameters, world.workers[0])  # as learners do that receive the model
        world.agenda.now_s = end_s


class Gradients:
    """The gradients of a run, from the update that makes their model to the one that uses them."""

    def __init__(self, engine: Engine, uses: NDArray[np.int64]) -> None:
        self._engine, self._uses = engine, uses
        self._held: dict[int, tuple[DeferredGradient, float]] = {}  # by place in ``uses``: gradient, learning rate
        self._samplers = engine.problem.samplers
        self._drawn = [0] * len(self._samplers)  # mini-batches, by learner

    def begin(self, version: int, places: list[int], model: Tensor) -> None:
        """Take the gradients of ``places`` at ``model``."""
        if not places:
            return
        engine, model, rate = self._engine, model.clone(), self._engine.learning_rate(version)
        for place, (rank, _, step) in zip(places, self._uses[:, places].T.tolist(), strict=True):
            batches = self._samplers[rank].take(step - self._drawn[rank])  # with those of cancelled steps
            self._drawn[rank] = step
            self._held[place] = engine.gradient_at(rank, step - 1, batches[-1], model), rate

    def mean(self, places: list[int]) -> tuple[Tensor, float]:
        """Return the mean of the gradients of ``places``, in this order, and their mean rate; drop them."""
        used = [self._held.pop(place) for place in places]
        weights = [self._engine.weight(gradient.rank) for gradient, _ in used]
        return mean_gradient([gradient.evaluated() for gradient, _ in used], weights, [rate for _, rate in used])
