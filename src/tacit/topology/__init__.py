"""Topologies: graphs over the ranks, their mixing weights, and random edges and matchings.

A topology knows neither workers nor the network.
"""

from tacit.topology.directed import ExponentialGraph, OnePeer
from tacit.topology.graph import Graph
from tacit.topology.topology import Neighbours, Topology
from tacit.topology.undirected import Complete, Hypercube, RandomRegular, Ring, Star, Torus

__all__ = [
    "Complete",
    "ExponentialGraph",
    "Graph",
    "Hypercube",
    "Neighbours",
    "OnePeer",
    "RandomRegular",
    "Ring",
    "Star",
    "Topology",
    "Torus",
]
