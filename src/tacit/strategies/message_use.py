"""Which strategies use collectives alone: for these, real processes open no message endpoint."""

from __future__ import annotations

from typing import Any, Final

from tacit.core.strategy import Strategy
from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.compressed_gradient import CompressedGradient
from tacit.strategies.ddp import DDP
from tacit.strategies.hierarchical.strategy import Hierarchical
from tacit.strategies.local_sgd.strategy import LocalSGD

_COLLECTIVE: Final = (AllReduce, DDP, CompressedGradient, Hierarchical, LocalSGD)


def may_send(strategy: Strategy[Any]) -> bool:
    """Whether ``strategy`` may use messages: every class that is not known to do without, also a subclass of one that
    is.
    """
    return type(strategy) not in _COLLECTIVE
