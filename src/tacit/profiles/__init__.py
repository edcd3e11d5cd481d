"""Profiles: a cluster and a training job as they were measured, from which runs are predicted."""

from tacit.profiles.profile import Profile

__all__ = ["Profile"]
