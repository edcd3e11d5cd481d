"""The gradient engine: gradients and updates of all simulated workers, computed together."""
