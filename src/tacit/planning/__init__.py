"""Plans: which strategy will be fastest on a cluster, before the run."""

from tacit.planning import files  # noqa: F401 - tacit.attach reads plans with it
from tacit.planning.maps import PlanMap, plan_map
from tacit.planning.plan import Plan
from tacit.planning.planner import plan

__all__ = ["Plan", "PlanMap", "plan", "plan_map"]
