"""Faults of real runs by a seeded plan: kill, stop, slow, cut off, fill the disk; and what became of the run."""

from tacit.chaos.drawing import draw_plan
from tacit.chaos.plan import ChaosFault, ChaosPlan
from tacit.chaos.run import ChaosRun, run_chaos

__all__ = ["ChaosFault", "ChaosPlan", "ChaosRun", "draw_plan", "run_chaos"]
