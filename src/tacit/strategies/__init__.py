"""Strategies: how workers talk. Each is a frozen specification, a state and hooks, written once for both worlds."""

from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.compressed_gradient import CompressedGradient
from tacit.strategies.local_sgd import LocalSGD
from tacit.strategies.strategy import Strategy

__all__ = ["AllReduce", "CompressedGradient", "LocalSGD", "Strategy"]
