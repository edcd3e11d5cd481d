"""Local SGD: periodic averaging, period rules and outer optimizers."""

from tacit.core.compatibility.deprecation import moved_attributes

__getattr__ = moved_attributes(__name__, {"LocalSGD": "tacit.strategies.local_sgd.strategy"})
