"""Runs without fibers, of strategies that can run a hook for all ranks at once.

``alike``: ranks act alike, and the hooks of worker 0 run for all. ``together``: the hook of all ranks is one call.

Workers differ in their compute times, mini-batches and parameters. Compute times are one matrix, mini-batches are
drawn for many steps at once, parameters are the engine's matrix. A collective starts when the last worker is there, as
in ``collectives``. Results and traces are those of fibers: the same operations in the same order for each worker.
"""

from __future__ import annotations

import torch

from tacit.simulation.agenda import rare_collections
from tacit.simulation.evaluation.timed import TimedEvaluator
from tacit.simulation.lockstep.alike import ActingAlike, acts_alike
from tacit.simulation.lockstep.together import ActingTogether, acts_together
from tacit.simulation.world import World

__all__ = ["run_lockstep"]


def run_lockstep(world: World) -> bool:
    """Run the world without fibers, if its strategy allows it; return whether it has run."""
    if type(world) is not World or world.cluster.faults or world.moments is not None:
        return False
    if world.evaluator.until_loss is not None or isinstance(world.evaluator, TimedEvaluator):
        return False
    with rare_collections(), torch.no_grad():
        if acts_alike(world):
            ActingAlike(world).run()
        elif acts_together(world):
            ActingTogether(world).run()
        else:
            return False
    return True
