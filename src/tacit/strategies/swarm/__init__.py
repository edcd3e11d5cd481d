"""SwarmSGD and PullSwarm: each node averages with one neighbour at a time."""

from tacit.strategies.swarm.local_steps import Geometric
from tacit.strategies.swarm.pull import PullSwarm
from tacit.strategies.swarm.swarm_sgd import SwarmSGD

__all__ = ["Geometric", "PullSwarm", "SwarmSGD"]
