"""Loss curves that do not depend on the network: simulated once, and combined with the times of many clusters."""

from tacit.compare.curves.cache import LossCurves
from tacit.compare.curves.curve import Curve, time_to_loss

__all__ = ["Curve", "LossCurves", "time_to_loss"]
