"""Predicted peak memory of a strategy: that of the training script, and the models that the strategy holds."""

from __future__ import annotations

from typing import Any

from tacit.profiles.profile import Profile
from tacit.profiles.strategy_memory import models_of
from tacit.strategies import Strategy


def memory_bytes(strategy: Strategy[Any], profile: Profile) -> int | None:
    """Return the predicted peak memory of a worker; None if the profile has no measured memory."""
    models = models_of(strategy)
    if models is None or not profile.peak_memory_bytes or not profile.parameter_bytes:
        return None
    return round(max(profile.peak_memory_bytes.values()) + models * profile.parameter_bytes)
