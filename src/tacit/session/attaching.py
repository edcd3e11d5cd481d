"""What ``tacit.attach`` does to a model: checks, common start values, and the parts of the session."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from tacit.core.strategy import ServerStrategy, Strategy
from tacit.errors import MisplacedCall
from tacit.record.facts import model_facts
from tacit.record.progress import NOTHING, ProgressWriter
from tacit.session.agreement import common_table
from tacit.session.backend import SessionBackend
from tacit.session.checkpoint_shard import CheckpointShard
from tacit.session.duplicate_work import DuplicateWork
from tacit.session.model.extra_state import ExtraState, NetworkWithExtraState
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.model.reported_model import ReportedModel
from tacit.session.options import SessionOptions
from tacit.session.plan_watch.watch import PlanWatch
from tacit.session.recording.logs import open_log
from tacit.session.recording.recorder import Recorder
from tacit.session.server import SessionServer
from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.optimizers import Optimizers, evaluates_several_times
from tacit.session.steps.step_hooks import StepHooks

if TYPE_CHECKING:
    from tacit.session.session import Session

_logger: Final = logging.getLogger("tacit")
_attached: Final[weakref.WeakValueDictionary[int, Session]] = weakref.WeakValueDictionary()
"""Open sessions, by the ``id`` of each parameter that they train."""


@dataclass(frozen=True)
class SessionParts:
    """The objects that a session consists of."""

    module: nn.Module
    flat: FlatModel
    recorder: Recorder
    duplicates: DuplicateWork
    worker: AttachedWorker
    server: SessionServer | None  # in server strategies
    hooks: StepHooks
    reported: ReportedModel
    shard: CheckpointShard


def make_parts(
    backend: SessionBackend,
    module: nn.Module,
    optimizers: Optimizers,
    strategy: Strategy[Any],
    steps: int | None,
    seed: int,
    options: SessionOptions,
) -> SessionParts:
    """Check that all ranks agree, broadcast the start values, and return the parts of a session. Collective."""
    backend.agree(common_table(module, optimizers, strategy, steps, seed, options))
    flat = FlatModel(module)
    averaged = options.buffers, options.optimizer_state, options.moments_every
    extra_state = ExtraState(module, optimizers, flat.parameters, *averaged)
    _broadcast_start(backend, module, flat)
    recorder = Recorder(backend, open_log(options.log, backend.rank), steps, optimizers)
    duplicates = DuplicateWork(backend)
    if backend.rank == 0:
        _warn_of_full_vectors(backend, strategy, steps, flat)
    network = NetworkWithExtraState(backend.network, extra_state, backend.all_gather)
    worker = AttachedWorker(backend, network, flat, optimizers, strategy, steps, seed)
    if options.probe is not None and not options.probe.keeps_losses:
        worker.must_be_finite = False  # only times matter
    server = None
    if isinstance(strategy, ServerStrategy):
        server = SessionServer(backend, flat, optimizers, strategy, steps, seed)
        recorder.updates = lambda: worker.updates
    if options.plan is not None and backend.rank == 0 and backend.world == "processes":
        recorder.watch = PlanWatch(options.plan, backend.size, steps)
    if options.progress_folder is not None and backend.totals is not None:
        recorder.period = lambda: worker.period
        recorder.progress = _progress(backend, flat, module, strategy, steps, seed, options)
    hooks = StepHooks(backend.step, flat, optimizers, strategy, worker)
    reported = ReportedModel(backend, module, flat, options, hooks, server)
    shard = CheckpointShard(backend, module, optimizers, strategy, hooks, recorder)
    if backend.rank == 0 and any(map(evaluates_several_times, optimizers)):
        _logger.warning(
            'LBFGS is reset whenever the strategy changes the model: optimizer_state="%s" does not apply to it, '
            "because the curvature of another model makes it diverge.",
            options.optimizer_state,
        )
    return SessionParts(module, flat, recorder, duplicates, worker, server, hooks, reported, shard)


def _progress(
    backend: SessionBackend,
    flat: FlatModel,
    module: nn.Module,
    strategy: Strategy[Any],
    steps: int | None,
    seed: int,
    options: SessionOptions,
) -> ProgressWriter:
    """Return the writer of this worker's progress."""
    header = {
        "rank": backend.rank,
        "workers": backend.size,
        "model": type(module).__name__,
        "strategy": str(strategy),
        "has_rounds": not (strategy.handles or strategy.has_server),
        "has_server": strategy.has_server,
        "steps": steps,
        "seed": seed,
        **model_facts(flat.dimension, flat.dtype, sum(p.numel() * p.element_size() for p in flat.parameters)),
        "predicted": dict(options.plan.predicted) if options.plan is not None and backend.rank == 0 else {},
    }
    assert options.progress_folder is not None
    return ProgressWriter(options.progress_folder, header, lambda: backend.totals or NOTHING)


def _broadcast_start(backend: SessionBackend, module: nn.Module, flat: FlatModel) -> None:
    """Overwrite parameters, frozen ones too, and buffers with those of rank 0."""
    backend.broadcast(flat.vector())
    flat.write_back()
    for tensor in untrained_tensors(module, flat):
        backend.broadcast(tensor)


def untrained_tensors(module: nn.Module, flat: FlatModel) -> list[Tensor]:
    """Return the frozen parameters and the buffers of ``module`` that are not empty."""
    trained = {id(p) for p in flat.parameters}
    frozen = (p.data for p in module.parameters() if id(p) not in trained)
    return [tensor for tensor in (*frozen, *module.buffers()) if tensor.numel()]


def _warn_of_full_vectors(backend: SessionBackend, strategy: Strategy[Any], steps: int | None, flat: FlatModel) -> None:
    """Warn that EF21 and similar methods send full vectors at the end of a run whose length is unknown."""
    feedback = getattr(strategy, "feedback", None)
    if steps is None and backend.size > 1 and getattr(feedback, "ends_in_full", False):
        size_bytes = sum(p.numel() * p.element_size() for p in flat.parameters)
        _logger.warning(
            "steps=None with feedback=%s: each worker sends its estimate back in full when its data ends, %d bytes to "
            "every other worker; give steps=… to avoid that.",
            feedback,
            size_bytes,
        )


# Attached parameters.


def mark_attached(session: Session, flat: FlatModel) -> None:
    """Register the parameters that ``session`` trains."""
    _attached.update({id(p): session for p in flat.parameters})


def unmark_attached(session: Session, flat: FlatModel) -> None:
    """Undo ``mark_attached``."""
    for parameter in flat.parameters:
        if _attached.get(id(parameter)) is session:
            del _attached[id(parameter)]


def check_not_attached(model: nn.Module) -> None:
    """Raise if an open session trains parameters of ``model``."""
    for name, parameter in model.named_parameters():
        if id(parameter) in _attached:
            raise MisplacedCall(
                f"the parameter {name} is attached already; close its session first. Several optimizers of one model "
                f"are attached together: tacit.attach(model, [first, second], …)."
            )
