"""Maps: which strategy is fastest where, over two properties of a cluster."""

from tacit.planning.maps.axes import Axis
from tacit.planning.maps.plan_map import plan_map
from tacit.planning.maps.result import Cell, PlanMap

__all__ = ["Axis", "Cell", "PlanMap", "plan_map"]
