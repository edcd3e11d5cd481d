"""Descriptions of a cluster: workers, compute-time distributions, links and faults."""

from tacit.cluster.cluster import Cluster, Link

__all__ = ["Cluster", "Link"]
