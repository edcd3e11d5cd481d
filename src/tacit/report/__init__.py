"""Tables and one self-contained HTML page, from Runs alone, so that simulated and real runs look alike.

What draws or prints is imported at its first use: ``import tacit`` needs neither plotly, jinja2 nor rich.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tacit.report.comparison import Comparison, Entry, default_target_loss
from tacit.report.verdict import verdict

if TYPE_CHECKING:
    from tacit.report.graph_page import print_topologies, write_topologies
    from tacit.report.page import render, write_report
    from tacit.report.table import print_table

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

_MODULES: Final = {
    "print_table": "table",
    "print_topologies": "graph_page",
    "render": "page",
    "write_report": "page",
    "write_topologies": "graph_page",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
