"""Membership: collectives go on with the living when workers die, stop, come back or join."""
