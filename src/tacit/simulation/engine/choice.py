"""Choose the gradient engine by a fixed rule of module kinds, sizes and device, so that equal runs have equal digests.

vmap and plain autograd differ in the last bits. The choice is therefore part of the record of a run and does not depend
on measurements.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import torch
from torch import nn

from tacit.errors import nearest, require
from tacit.workloads.workload import Problem

logger = logging.getLogger("tacit")
_logged: set[str] = set()

ENGINES: Final = ("auto", "captured", "compiled", "vmap", "loop")
STATIC: Final = ("captured", "compiled")  # evaluate gradients like "vmap", in calls with static inputs

# Taken from the table "rule" of `make bench-simulator` (benchmarks/results/simulator.json).
FEWEST_FOR_VMAP: Final = 4  # a call of vmap costs about 1 ms before the first replica
LARGEST_CONVOLVED_BY_VMAP_ON_CPU: Final = 256  # numbers in a sample: 8x8 pictures gain up to 2.6x, 28x28 ones lose
LARGEST_FOR_VMAP_ON_CPU: Final = 1_500_000  # parameters; the gain has shrunk to a tenth there, and memory grows

_DRAWING: Final = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
_CONVOLVING: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Choice(NamedTuple):
    """The engine that evaluates gradients, and the reason."""

    engine: str
    reason: str


def choose_engine(wanted: str, problem: Problem, workers: int, device: torch.device) -> Choice:
    """Return the engine for a problem; ``wanted`` overrides the rule if that engine can run the model."""
    require(wanted in ENGINES, f"engine={wanted!r} is unknown{nearest(str(wanted), ENGINES)}")
    must_loop = why_one_by_one(problem.module)
    if must_loop is not None:
        can_run = wanted in ("auto", "loop")
        require(can_run, f'engine="{wanted}" cannot run this model: {must_loop}; pass engine="auto".')
        warn_once(must_loop)
        return Choice("loop", must_loop)
    needs_cuda = 'engine="captured" records CUDA graphs and needs device="cuda"; pass engine="auto".'
    require(wanted != "captured" or device.type == "cuda", needs_cuda)
    if wanted != "auto":
        return Choice(wanted, f"engine={wanted!r}")
    if device.type == "cuda":
        return Choice("captured", "a CUDA graph needs one launch per call")
    if workers < FEWEST_FOR_VMAP:
        return Choice("loop", f"{workers} workers are fewer than {FEWEST_FOR_VMAP}")
    if device.type == "cpu":
        convolves = any(isinstance(m, _CONVOLVING) for m in problem.module.modules())
        if convolves and (problem.sample_numbers or 0) > LARGEST_CONVOLVED_BY_VMAP_ON_CPU:
            return Choice("loop", "convolutions of large samples gain nothing from vmap on CPU")
        if problem.layout.dimension > LARGEST_FOR_VMAP_ON_CPU:
            return Choice("loop", f"{problem.layout.dimension:,} parameters gain nothing from vmap on CPU")
    return Choice("vmap", "many small replicas")


def warn_once(reason: str, what: str = "one by one") -> None:
    """Warn, once per process and reason, that gradients are not evaluated in the fastest way."""
    if reason not in _logged:
        _logged.add(reason)
        logger.warning("gradients are evaluated %s: %s", what, reason)


def why_one_by_one(module: nn.Module) -> str | None:
    """Return the reason for which ``module`` must run one worker at a time, or None."""
    for name, part in module.named_modules():
        where = f"{type(part).__name__} ({name})" if name else type(part).__name__
        if isinstance(part, _DRAWING) and getattr(part, "p", 1) != 0:
            return f"{where} draws random numbers"
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            return f"{where} updates its buffers"
        if isinstance(part, nn.RNNBase):
            return f"{where} has no batching rule"
    return None
