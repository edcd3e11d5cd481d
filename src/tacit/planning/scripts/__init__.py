"""Plans for a user's own training script, which runs unmodified in the simulator."""
