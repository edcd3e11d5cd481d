"""Tables and one self-contained HTML page, from Runs alone, so that simulated and real runs look alike."""

from tacit.report.comparison import Comparison, Entry, default_target_loss
from tacit.report.graph_page import print_topologies, write_topologies
from tacit.report.page import render, write_report
from tacit.report.table import print_table
from tacit.report.verdict import verdict

__all__ = [
    "Comparison",
    "Entry",
    "default_target_loss",
    "print_table",
    "print_topologies",
    "render",
    "verdict",
    "write_report",
    "write_topologies",
]
