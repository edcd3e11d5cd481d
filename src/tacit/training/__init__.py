"""Local optimizers and learning-rate schedules."""
