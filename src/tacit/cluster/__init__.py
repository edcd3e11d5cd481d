"""Descriptions of a cluster: workers, compute-time distributions, hosts, links and faults."""

from tacit.cluster.cluster import Cluster
from tacit.cluster.links import Link, Nic

__all__ = ["Cluster", "Link", "Nic"]
