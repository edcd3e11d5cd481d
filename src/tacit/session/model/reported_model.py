"""The model that a strategy reports, in place of a worker's own: during an evaluation, and after the run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

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
                self._backend.drain()
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
            reported = self._hooks.reported()  # which may change this worker's own model
            own = self._flat.vector().clone()
            self._flat.vector().copy_(reported)
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
        found = self._backend.all_gather(str(self._hooks.own_steps).encode())
        steps = {rank: int(own) for rank, own in enumerate(found) if own}
        if min(steps.values()) < max(steps.values()) and self._hooks.calls_before:
            self._backend.broadcast(self._flat.vector(), max(steps, key=lambda rank: steps[rank]))
            self._flat.write_back()

    def update_buffers(self) -> None:
        """Apply the option ``buffers`` to the model in place."""
        mean = self._backend.mean if self._backend.size > 1 else None
        batch_norm.report(self._module, self._options.buffers, self._options.calibration, mean)


class ModelSwap:
    """The context that ``session.reported_model()`` returns. It warns if it is dropped without being entered."""

    def __init__(self, context: AbstractContextManager[nn.Module]) -> None:
        self._context, self._is_entered = context, False

    def __enter__(self) -> nn.Module:
        self._is_entered = True
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if not self._is_entered and not sys.is_finalizing():
            warnings.warn(
                "session.reported_model() without `with` does nothing; write `with session.reported_model():` and "
                "evaluate the model inside.",
                stacklevel=2,
            )
