"""One gradient through ``attach`` and ``AllReduce`` crosses the packages of tacit at most 12 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "trace_crossings.py"
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_workers_cross_packages_at_most_twelve_times_in_a_step() -> None:
    command = [*LAUNCH, str(TOOL), "all-reduce", "--limit", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runtime/network.py:ProcessNetwork.all_reduce_mean" in done.stdout  # the trace is not empty
