"""Memory of a strategy: models that it holds beyond the training script's own memory, by family.

The numbers are peaks of resident memory on rank 0, measured by part 6 of ``make bench-plan`` with two processes and a
model of ten million parameters (benchmarks/results/plan.md).
"""

from __future__ import annotations

from typing import Any, Final

from tacit.compression import QSGD
from tacit.strategies import AllReduce, CompressedGradient, LocalSGD, Strategy, SwarmSGD

_ALL_REDUCE: Final = 1.7
_LOCAL, _OVERLAPPED, _VARIANCE, _OUTER = 0.7, 1.7, 4.7, 5.7
_SPARSE, _QUANTIZED = 9.5, 12.1
_GOSSIP: Final = 6.6
_SERVER: Final = 7.1  # on rank 0, the server's model included


def models_of(strategy: Strategy[Any]) -> float | None:
    """Return how many models a strategy holds at its peak, besides the script's own memory; None: not known."""
    if isinstance(strategy, AllReduce):
        return _ALL_REDUCE
    if isinstance(strategy, LocalSGD):
        if strategy.compressor is not None:
            return _QUANTIZED if isinstance(strategy.compressor, QSGD) else _SPARSE
        if strategy.outer is not None:
            return _OUTER
        if strategy.period.needs_variance:
            return _VARIANCE
        return _OVERLAPPED if strategy.overlap_steps else _LOCAL
    if isinstance(strategy, CompressedGradient):
        return _QUANTIZED if isinstance(strategy.compressor, QSGD) else _SPARSE
    if isinstance(strategy, SwarmSGD):
        return _GOSSIP
    return _SERVER if strategy.has_server else None
