"""Real processes behind the port."""
