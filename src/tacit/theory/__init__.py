"""Closed forms: what the papers prove, as functions of the constants of a problem."""

from tacit.theory.ef21 import (
    ef21_beta,
    ef21_distortion_bound,
    ef21_gradient_bound,
    ef21_pl_rate,
    ef21_step_size,
    ef21_theta,
)

__all__ = [
    "ef21_beta",
    "ef21_distortion_bound",
    "ef21_gradient_bound",
    "ef21_pl_rate",
    "ef21_step_size",
    "ef21_theta",
]
