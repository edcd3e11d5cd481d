"""Comparison of several strategies on one workload or script and one cluster, paired by seed."""

from tacit.compare.findings import Findings
from tacit.compare.workloads import compare

__all__ = ["Findings", "compare"]
