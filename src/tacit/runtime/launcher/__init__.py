"""The launcher: starts the workers of this machine, sees them end, starts them again, and hosts their store."""
