"""Descriptions of a cluster: workers, compute-time distributions, hosts, links and faults."""

from tacit.cluster.calibrated import Calibrated
from tacit.cluster.cluster import Cluster
from tacit.cluster.collectives import Gloo, Measured
from tacit.cluster.links import Link, Nic

__all__ = ["Calibrated", "Cluster", "Gloo", "Link", "Measured", "Nic"]
