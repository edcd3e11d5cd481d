"""Strategies with a parameter server: the four kinds of K-of-P, AdaSync, Ringleader, and learning-rate rules."""

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
