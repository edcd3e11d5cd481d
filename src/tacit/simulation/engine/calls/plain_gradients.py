"""Gradients of several replicas in one plain call: by ``torch.func.vmap``, or one replica after another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from tacit.simulation.engine.calls.recorded_calls import RecordedCalls
from tacit.simulation.engine.choice import Choice, warn_once
from tacit.simulation.engine.per_worker_state import BuffersPerWorker
from tacit.workloads.workload import Problem


class PlainGradients:
    """Evaluates gradients; where ``vmap`` fails, from then on one by one.

    buffers: of each worker, for modules that run one by one.
    """

    def __init__(self, problem: Problem, choice: Choice, buffers: BuffersPerWorker) -> None:
        self._problem, self.choice, self.buffers = problem, choice, buffers
        self.vmapped = vmap(grad_and_value(self._loss))
        self._recorded = RecordedCalls(self.vmapped, problem.module)

    def evaluate(
        self, ranks: list[int], parameters: dict[str, Tensor], batch: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return gradients by name and losses of ``ranks``, each with a leading dimension of replicas."""
        if self.choice.engine != "loop":
            try:
                return self._recorded(parameters, *batch)
            except (RuntimeError, NotImplementedError) as error:
                self.choice = Choice("loop", f"vmap failed: {str(error).splitlines()[0]}")
                warn_once(self.choice.reason)
        gradients = {name: torch.empty_like(part) for name, part in parameters.items()}
        losses = torch.empty(len(ranks), dtype=next(iter(parameters.values())).dtype, device=batch[0].device)
        for place, rank in enumerate(ranks):
            own = {name: part[place].detach().requires_grad_() for name, part in parameters.items()}
            with torch.enable_grad(), self.buffers.of(rank) as buffers:
                loss = functional_call(self._problem.module, own | buffers, tuple(part[place] for part in batch))
            parts = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
            for name, part in zip(own, parts, strict=True):
                gradients[name][place] = 0.0 if part is None else part
            losses[place] = loss.detach()
        return gradients, losses

    def _loss(self, parameters: dict[str, Tensor], *batch: Tensor) -> Tensor:
        loss: Tensor = functional_call(self._problem.module, parameters, batch)
        return loss
