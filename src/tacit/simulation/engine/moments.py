"""Optimizer moments of simulated workers, averaged with their parameters as on real processes.

Each worker's moments are rows of the engine's optimizer. They are appended to the strategy's all-reduces, by the code
that does so for attached models. Buffers of replicas stay apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tacit.core.network import Network
from tacit.errors import require
from tacit.session.model.extra_state import AveragedState, MomentsEvery, NetworkWithExtraState, check_moments
from tacit.session.steps.optimizers import is_moment
from tacit.simulation.channels import Channel
from tacit.simulation.engine.engine import Engine
from tacit.training.optimizers import ELEMENTWISE, Factory

if TYPE_CHECKING:
    from tacit.simulation.network import SimulatedNetwork
    from tacit.simulation.workers import SimulatedWorker


@dataclass(frozen=True)
class Moments:
    """What happens to the moments of all workers in rounds. ``names``: of the moments that the optimizer keeps."""

    policy: str  # "keep", "average" or "reset"
    every: MomentsEvery
    names: tuple[str, ...]

    @classmethod
    def of(cls, factory: Factory, policy: str, every: MomentsEvery) -> Moments | None:
        """Return the policy for the optimizers that ``factory`` makes; None where moments are kept."""
        check_moments(policy, every)
        if policy == "keep":
            return None
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        optimizer = factory([parameter])
        kind = type(optimizer)
        known = ", ".join(one.__name__ for one in ELEMENTWISE)
        rule = f"must be elementwise: the simulator averages moments of {known}"
        require(kind in ELEMENTWISE, f'optimizer={kind.__name__} {rule}; use one of them, or optimizer_state="keep".')
        optimizer.step()
        names = sorted(name for name, value in optimizer.state[parameter].items() if is_moment(value, parameter))
        unknown = [name for name in every if name not in names] if isinstance(every, dict) else []
        held = ", ".join(names) or "none"
        require(not unknown, f"moments_every={every!r}: {kind.__name__} has no {unknown}; its moments are {held}.")
        return cls(policy, every, tuple(names))

    def network_of(self, worker: SimulatedWorker) -> NetworkWithMoments:
        """Return the network of ``worker`` with its moments in all-reduces."""
        return NetworkWithMoments(worker.network, RowMoments(self, worker))


class RowMoments(AveragedState):
    """The moments of one worker."""

    def __init__(self, moments: Moments, worker: SimulatedWorker) -> None:
        super().__init__(moments.every)
        self._moments, self._worker, self._engine = moments, worker, worker.world.engine

    def end_round(self) -> None:
        super().end_round()
        if self._moments.policy == "reset" and isinstance(self._engine, Engine):
            self._engine.optimizer.forget(self._worker.rank)

    def _tensors(self) -> list[Tensor]:
        if self._moments.policy != "average" or self._worker.step == 0:  # without a step there are no moments
            return []
        names = [name for name in self._moments.names if self.is_due(name)]
        parameters = self._engine.row(self._worker.rank)  # after the worker's steps in the engine's queue
        if not isinstance(self._engine, Engine):
            return [torch.zeros_like(parameters) for _ in names]
        held = self._engine.optimizer.moments(self._worker.rank)
        return [tensor for name in names for tensor in held[name]]


class NetworkWithMoments(NetworkWithExtraState):
    """The network of a simulated worker whose moments are averaged or reset in rounds."""

    def __init__(self, network: SimulatedNetwork, state: RowMoments) -> None:
        plain: Network = network
        super().__init__(plain, state, lambda own: [own])
        self.channel: Channel = network.channel
