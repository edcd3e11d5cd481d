"""A comparison on Ray. Run it where Ray is installed; with RAY_ADDRESS it uses that cluster.

pip install --editable '.[dev,ray]'
python -m pytest tests/test_compare_ray.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit import TacitError

HAS_RAY = importlib.util.find_spec("ray") is not None
SCRIPT = """
import json, os, signal
import torch, tacit

class Own(tacit.LocalSGD):  # of a script: Ray sends it by value
    pass

class Killed(tacit.LocalSGD):
    def before_step(self, worker, state):
        os.kill(os.getpid(), signal.SIGKILL)

def digests(findings):
    return {entry.label: [run.digest for run in entry.runs] for entry in findings.comparison.entries}

data = torch.eye(8), torch.ones(8, 1)
loss = lambda left, right: torch.nn.functional.mse_loss(left, right)
workload = tacit.workloads.custom(torch.nn.Linear(8, 1), loss, data=data)
settings = {"cluster": tacit.Cluster(workers=2), "steps": 12, "seeds": (0, 1)}
strategies = [tacit.AllReduce(), Own()]
there = tacit.compare(workload, strategies, executor="ray", **settings)
here = tacit.compare(workload, strategies, **settings)
killed = tacit.compare(workload, [tacit.AllReduce(), Killed()], executor="ray", jobs=2, **{**settings, "seeds": (0,)})
statuses = {entry.label: [run.status for run in entry.runs] for entry in killed.comparison.entries}
print(json.dumps([digests(there), digests(here), list(there.notes), statuses]))
"""


@pytest.mark.timeout(400)
@pytest.mark.skipif(not HAS_RAY, reason='needs Ray: pip install "tacit[ray]"')
def test_runs_on_ray_equal_those_here_and_a_killed_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "sweep.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    there, here, notes, statuses = json.loads(done.stdout.splitlines()[-1])
    assert there == here and list(there) == ["AllReduce()", "Own(period=Every(8))"]
    assert notes == []
    assert statuses["AllReduce()"] == ["finished"]
    assert all("the executor lost it: WorkerCrashedError" in status for status in statuses["Killed(period=Every(8))"])


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_error_names_the_extra() -> None:
    with pytest.raises(
        TacitError, match=r"executor='ray' needs Ray, which is not installed: pip install 'tacit\[ray\]'"
    ):
        tacit.compare(tacit.workloads.quadratic(dimension=2), [tacit.AllReduce()], executor="ray")
