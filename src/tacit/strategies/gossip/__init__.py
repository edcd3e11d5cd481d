"""Gossip: averaging along the edges of a graph. The methods that SwarmSGD is compared with."""

from tacit.strategies.gossip.asynchronous import AsynchronousDPSGD
from tacit.strategies.gossip.choco import CHOCO
from tacit.strategies.gossip.dpsgd import DPSGD
from tacit.strategies.gossip.sgp import SGP

__all__ = ["CHOCO", "DPSGD", "SGP", "AsynchronousDPSGD"]
