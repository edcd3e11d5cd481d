"""Pilots: short real runs of the finalists of a plan, which tell how their losses fall compared with DDP's."""
