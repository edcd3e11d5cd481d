"""Predicted memory of a strategy: models that it holds beyond parameters and gradient, by family.

The numbers are those of an independent study: 10M parameters, two processes, rank 0, at the peak. No benchmark of this
repository checks them yet.
"""

from __future__ import annotations

from typing import Any, Final

from tacit.compression import QSGD
from tacit.profiles.profile import Profile
from tacit.strategies import AllReduce, CompressedGradient, LocalSGD, Strategy, SwarmSGD

_ALL_REDUCE: Final = 3.3
_LOCAL, _OVERLAPPED, _VARIANCE, _OUTER = 2.2, 3.2, 5.3, 6.3
_SPARSE, _QUANTIZED = 10.7, 8.8
_GOSSIP: Final = 8.1
_SERVER: Final = 8.2  # on rank 0, the server's model included


def models_of(strategy: Strategy[Any]) -> float | None:
    """Return how many models a strategy holds at its peak beyond parameters and gradient; None: not known."""
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


def memory_bytes(strategy: Strategy[Any], profile: Profile) -> int | None:
    """Return the predicted peak memory of a worker; None if the profile has no measured memory.

    The profile's memory was measured with ``AllReduce``, so the difference of the two strategies is added to it.
    """
    models = models_of(strategy)
    if models is None or not profile.peak_memory_bytes or not profile.parameter_bytes:
        return None
    measured = max(profile.peak_memory_bytes.values())
    return round(measured + (models - _ALL_REDUCE) * profile.parameter_bytes)
