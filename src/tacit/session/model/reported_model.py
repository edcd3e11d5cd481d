"""The model a strategy reports, in the place of a worker's own: for a while, to be evaluated, or at the end for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from tacit.session.backend import SessionBackend, level_clocks
from tacit.session.model import batch_norm as buffers
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.options import SessionOptions
from tacit.session.server import SessionServer
from tacit.session.steps.step_hooks import StepHooks


class ReportedModel:
    """One worker's part in it. ``serving`` is None where workers have the model among themselves."""

    def __init__(
        self,
        backend: SessionBackend,
        module: nn.Module,
        flat: FlatModel,
        policies: SessionOptions,
        stepper: StepHooks,
        serving: SessionServer | None,
    ) -> None:
        self._backend, self._module, self._flat, self._policies = backend, module, flat, policies
        self._stepper, self._serving = stepper, serving

    @contextmanager
    def swapped_in(self, exchanging: AbstractContextManager[None]) -> Iterator[None]:
        """Have the model to report in place, as it is now. What it takes to get it happens in ``exchanging``."""
        if self._serving is not None:
            self._serving.start()
            with self._servers_model(exchanging):
                yield
            return
        with self._backend.pause():
            with exchanging, self._stepper.in_hook():
                level_clocks(self._backend)
                own = self._flat.vector().clone()
                self._flat.vector().copy_(self._backend.mean(self._stepper.reported()))
                kept = [b.clone() for b in self._module.buffers()]
            self.settle_buffers()
            try:
                yield
            finally:
                self._backend.exchange(b"evaluated")  # the clocks of all stand still as long as anybody's does
                with torch.no_grad():
                    self._flat.vector().copy_(own)
                    self._flat.settle()
                    for buffer, before in zip(self._module.buffers(), kept, strict=True):
                        buffer.copy_(before)

    @contextmanager
    def _servers_model(self, exchanging: AbstractContextManager[None]) -> Iterator[None]:
        with exchanging, self._stepper.in_hook():
            own = self._flat.vector().clone()
            self._flat.vector().copy_(self._stepper.reported())
        try:
            yield
        finally:
            with torch.no_grad():
                self._flat.vector().copy_(own)
                self._flat.settle()

    @torch.no_grad()
    def level_out(self) -> None:
        """At the end everybody gets the model to report: the server's, or, where data ended early, that of a rank that
        took the last updates.
        """
        if self._serving is not None:
            self._serving.level_out()
            return
        steps = [int(own) for own in self._backend.exchange(str(self._stepper.own_steps).encode()) if own]
        if min(steps) < max(steps) and self._stepper.calls_before:
            self._backend.spread(self._flat.vector(), self._backend.living[steps.index(max(steps))])
            self._flat.settle()

    def settle_buffers(self) -> None:
        """Do to the buffers of the model in place what the policy says."""
        policies, mean = self._policies, self._backend.mean if self._backend.size > 1 else None
        buffers.report(self._module, policies.buffers, policies.calibration, mean)
