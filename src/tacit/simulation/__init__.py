"""The simulated world: many workers in one process, under a virtual clock, reproducible from one seed."""

from tacit.simulation.cluster import Cluster, Link
from tacit.simulation.joins import check_joins
from tacit.simulation.simulate import configuration, simulate

__all__ = ["Cluster", "Link", "check_joins", "configuration", "simulate"]
