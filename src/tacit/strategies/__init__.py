"""Strategies: how workers talk. Each is a frozen specification, a state and hooks, written once for both worlds."""

from tacit.core.strategy import Strategy
from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.compressed_gradient import CompressedGradient
from tacit.strategies.ddp import DDP
from tacit.strategies.gossip import CHOCO, DPSGD, SGP, AsynchronousDPSGD
from tacit.strategies.hierarchical.strategy import Hierarchical
from tacit.strategies.local_sgd.strategy import LocalSGD
from tacit.strategies.message_use import may_send
from tacit.strategies.servers import AdaSync, KAsync, KBatchAsync, KBatchSync, KSync, Ringleader
from tacit.strategies.swarm import PullSwarm, SwarmSGD

__all__ = [
    "CHOCO",
    "DDP",
    "DPSGD",
    "SGP",
    "AdaSync",
    "AllReduce",
    "AsynchronousDPSGD",
    "CompressedGradient",
    "Hierarchical",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "LocalSGD",
    "PullSwarm",
    "Ringleader",
    "Strategy",
    "SwarmSGD",
    "may_send",
]
