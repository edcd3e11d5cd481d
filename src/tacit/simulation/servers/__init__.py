"""Simulated servers: their models, and timing-only runs without fibers."""
