"""A server that waits for K of P: four kinds, rates that look at staleness, and K adapted while running."""

from tacit.strategies.servers.adasync import AdaSync
from tacit.strategies.servers.learner import KAsync, KBatchAsync, KBatchSync, KofP, KSync
from tacit.strategies.servers.ringleader import Ringleader
from tacit.strategies.servers.staleness import InverseStaleness, Rate, RescaledRate, StalenessRate

__all__ = [
    "AdaSync",
    "InverseStaleness",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "KofP",
    "Rate",
    "RescaledRate",
    "Ringleader",
    "StalenessRate",
]
