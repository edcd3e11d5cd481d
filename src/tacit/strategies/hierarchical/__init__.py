"""Hierarchical training: one strategy inside groups of ranks, another one across the groups."""
