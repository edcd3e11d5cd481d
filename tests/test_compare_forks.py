"""Processes of a comparison that are forks: where a fork is safe, and that it is used there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading

import pytest

from tacit.compare.forks import is_forkable

SCRIPT = """
import os
import tacit
from tacit import workloads

class Parent(tacit.AllReduce):
    def init(self, worker):
        raise RuntimeError(f"the parent is {os.getppid()}")

found = tacit.compare(
    workloads.quadratic(dimension=2), [tacit.AllReduce(), Parent()], cluster=tacit.Cluster(workers=2), steps=2, jobs=2
)
print([os.getpid(), *(run.status for entry in found.comparison.entries for run in entry.runs)])
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
def test_a_process_without_threads_is_forked_and_its_script_does_not_run_again() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # OpenBLAS starts a thread, which does not count
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    me, *statuses = ast.literal_eval(child.stdout)
    assert statuses == ["finished", f"failed: RuntimeError: the parent is {me}"]


def test_a_process_with_threads_is_not_forked() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert not is_forkable()
    finally:
        ended.set()
        thread.join()
