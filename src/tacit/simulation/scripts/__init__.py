"""A user's script on a simulated cluster."""

from tacit.core.compatibility.deprecation import moved_attributes

__getattr__ = moved_attributes(__name__, {"simulate_script": "tacit.simulation.scripts.run"})
