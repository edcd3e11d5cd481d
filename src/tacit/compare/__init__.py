"""Comparison of several strategies on one workload or script and one cluster, paired by seed."""

from tacit.compare.curves import Curve, LossCurves, time_to_loss
from tacit.compare.findings import Findings
from tacit.compare.workloads import compare

__all__ = ["Curve", "Findings", "LossCurves", "compare", "time_to_loss"]
