"""Results of the papers as functions: expected times, error bounds, step sizes and periods."""

from tacit.theory.adasync import next_k as adasync_k
from tacit.theory.ef21 import (
    ef21_beta,
    ef21_distortion_bound,
    ef21_gradient_bound,
    ef21_pl_rate,
    ef21_step_size,
    ef21_theta,
)
from tacit.theory.ef21_sgd import (
    ef21_sgd_batch_size,
    ef21_sgd_distortion_bound,
    ef21_sgd_gradient_bound,
    ef21_sgd_noise,
    ef21_sgd_step_size,
)
from tacit.theory.graphs import GraphTheory
from tacit.theory.lupa import (
    lupa_adaptive_bound,
    lupa_bound,
    lupa_curve,
    lupa_offset,
    lupa_period,
    lupa_step_size,
)
from tacit.theory.lupa_schedule import ScheduleCondition, lupa_schedule_conditions
from tacit.theory.server_bounds import Objective, error_bound, error_curve, gradient_bound, largest_step_size
from tacit.theory.staleness_rate import staleness_rate_bound
from tacit.theory.swarm import swarm_consensus_bound, swarm_gradient_bound, swarm_paper_bound, swarm_step_size
from tacit.theory.times.freshness import fresh_probability, p0
from tacit.theory.times.order_statistics import order_statistic
from tacit.theory.times.renewals import round_time
from tacit.theory.times.update_times import TimeBounds, speed_up, update_time, update_time_bounds

__all__ = [
    "GraphTheory",
    "Objective",
    "ScheduleCondition",
    "TimeBounds",
    "adasync_k",
    "ef21_beta",
    "ef21_distortion_bound",
    "ef21_gradient_bound",
    "ef21_pl_rate",
    "ef21_sgd_batch_size",
    "ef21_sgd_distortion_bound",
    "ef21_sgd_gradient_bound",
    "ef21_sgd_noise",
    "ef21_sgd_step_size",
    "ef21_step_size",
    "ef21_theta",
    "error_bound",
    "error_curve",
    "fresh_probability",
    "gradient_bound",
    "largest_step_size",
    "lupa_adaptive_bound",
    "lupa_bound",
    "lupa_curve",
    "lupa_offset",
    "lupa_period",
    "lupa_schedule_conditions",
    "lupa_step_size",
    "order_statistic",
    "p0",
    "round_time",
    "speed_up",
    "staleness_rate_bound",
    "swarm_consensus_bound",
    "swarm_gradient_bound",
    "swarm_paper_bound",
    "swarm_step_size",
    "update_time",
    "update_time_bounds",
]
