"""A user's script on a simulated cluster."""
