"""Strategies with a parameter server: the four kinds of K-of-P, AdaSync, Ringleader, and learning-rate rules."""

from typing import Any

from tacit.core.compatibility.deprecation import warn_renamed
from tacit.strategies.servers.adasync import AdaSync
from tacit.strategies.servers.kinds import KAsync, KBatchAsync, KBatchSync, KSync
from tacit.strategies.servers.rates import InverseStaleness, Rate, RescaledRate, StalenessRate
from tacit.strategies.servers.ringleader import Ringleader
from tacit.strategies.servers.strategy import ParameterServerStrategy

__all__ = [
    "AdaSync",
    "InverseStaleness",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "ParameterServerStrategy",
    "Rate",
    "RescaledRate",
    "Ringleader",
    "StalenessRate",
]


def __getattr__(name: str) -> Any:
    if name != "KofP":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.KofP", f"{__name__}.ParameterServerStrategy")
    return ParameterServerStrategy
