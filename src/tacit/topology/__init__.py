"""Topologies: with whom to speak.

A graph over the ranks, its mixing weights, and meetings drawn along its edges; no worker, no network.
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
