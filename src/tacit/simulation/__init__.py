"""The simulated world: many workers in one process, under a virtual clock, reproducible from one seed."""

from tacit.simulation.simulate import configuration, simulate

__all__ = ["configuration", "simulate"]
