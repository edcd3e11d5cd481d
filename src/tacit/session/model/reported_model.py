"""The model that a strategy reports, in place of a worker's own: during an evaluation, and after the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from tacit.session.backend import SessionBackend, synchronize_clocks
from tacit.session.model import batch_norm
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.options import SessionOptions
from tacit.session.server import SessionServer
from tacit.session.steps.step_hooks import StepHooks


class ReportedModel:
    """One worker's part in reporting a model. ``server`` is None where workers hold the model."""

    def __init__(
        self,
        backend: SessionBackend,
        module: nn.Module,
        flat: FlatModel,
        options: SessionOptions,
        hooks: StepHooks,
        server: SessionServer | None,
    ) -> None:
        self._backend, self._module, self._flat, self._options = backend, module, flat, options
        self._hooks, self._server = hooks, server

    @contextmanager
    def swapped_in(self, exchanging: AbstractContextManager[None]) -> Iterator[None]:
        """Put the reported model in place; run the exchanges for it within ``exchanging``."""
        if self._server is not None:
            self._server.start()
            with self._server_model(exchanging):
                yield
            return
        with self._backend.pause():
            with exchanging, self._hooks.in_hook():
                synchronize_clocks(self._backend)
                own = self._flat.vector().clone()
                self._flat.vector().copy_(self._backend.mean(self._hooks.reported()))
                own_buffers = [b.clone() for b in self._module.buffers()]
            self.update_buffers()
            try:
                yield
            finally:
                self._backend.all_gather(b"evaluated")  # clocks stay stopped until all workers have evaluated
                with torch.no_grad():
                    self._flat.vector().copy_(own)
                    self._flat.write_back()
                    for buffer, before in zip(self._module.buffers(), own_buffers, strict=True):
                        buffer.copy_(before)

    @contextmanager
    def _server_model(self, exchanging: AbstractContextManager[None]) -> Iterator[None]:
        with exchanging, self._hooks.in_hook():
            own = self._flat.vector().clone()
            self._flat.vector().copy_(self._hooks.reported())
        try:
            yield
        finally:
            with torch.no_grad():
                self._flat.vector().copy_(own)
                self._flat.write_back()

    @torch.no_grad()
    def distribute(self) -> None:
        """Give all workers the final model: the server's, or that of a rank that took the last updates. Collective."""
        if self._server is not None:
            self._server.distribute_model()
            return
        steps = [int(own) for own in self._backend.all_gather(str(self._hooks.own_steps).encode()) if own]
        if min(steps) < max(steps) and self._hooks.calls_before:
            self._backend.broadcast(self._flat.vector(), self._backend.live_ranks[steps.index(max(steps))])
            self._flat.write_back()

    def update_buffers(self) -> None:
        """Apply the option ``buffers`` to the model in place."""
        mean = self._backend.mean if self._backend.size > 1 else None
        batch_norm.report(self._module, self._options.buffers, self._options.calibration, mean)
