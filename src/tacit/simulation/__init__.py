"""The simulated world: many workers in one process, under a virtual clock, reproducible from one seed."""

from tacit.simulation.settings.configuration import configuration
from tacit.simulation.simulate import simulate

__all__ = ["configuration", "simulate"]
