"""Everything that needs the machine for itself, in an order that later calls continue."""

from __future__ import annotations

import argparse
import time

from benchmarks.plan.costs import CALIBRATED, CHECKED, memory
from benchmarks.plan.drifting import falling
from benchmarks.plan.durations import planning
from benchmarks.plan.kept import kept
from benchmarks.plan.live_cost import measured
from benchmarks.plan.own_script import own_script
from benchmarks.plan.places import PROBED
from benchmarks.plan.probing import probed
from benchmarks.plan.recording import record_missing


def measure_missing(chosen: argparse.Namespace) -> None:
    """Make what the folder lacks: probes, then the runs that an earlier call has noted, then other measurements."""
    for place in PROBED:
        if time.monotonic() < chosen.ends_s:
            probed(place, chosen.folder)
    if not record_missing(chosen):
        return
    falling(chosen)
    kept("live_cost", chosen, lambda: measured(is_quick=False))
    planning(chosen)
    for setting in (CALIBRATED, CHECKED):
        memory(setting, chosen)
    own_script(chosen)
