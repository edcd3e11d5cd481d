"""Outer optimizers: the step of the common model after a round of ``LocalSGD``, and of an asynchronous server."""

from tacit.strategies.local_sgd.outer.delayed_nesterov import DelayedNesterov
from tacit.strategies.local_sgd.outer.optimizers import Outer, OuterAdam, OuterSGD, OuterState, SlowMo

__all__ = ["DelayedNesterov", "Outer", "OuterAdam", "OuterSGD", "OuterState", "SlowMo"]
