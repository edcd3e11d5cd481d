"""What the record of a run says about model, optimizer, processes and step times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.record.facts import (
    QUANTILES,
    merged_facts,
    peak_memory_bytes,
    step_time_quantiles,
)
from tacit.record.trace import Trace
from tests.runtime.processes import together


def attached() -> tacit.Run:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), steps=4) as session:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            session.observe(loss, samples=4 + 2 * session.rank)
            optimizer.step()
    return session.run


def test_a_real_run_records_model_processes_and_step_times(tmp_path: Path) -> None:
    run = together(2, attached)[0]
    record = run.record
    assert (record["parameters"], record["parameter_bytes"], record["dtype"]) == (8, 32, "float32")
    assert (record["backend"], record["hosts"], record["batch"]) == ("gloo", [[0, 1]], 5.0)
    assert record["optimizer"] == "SGD(lr=0.25, momentum=0.5)"
    for name in ("cores", "peak_memory_bytes"):
        assert set(record[name]) == {"0", "1"} and all(value >= 1 for value in record[name].values())
    times_s = record["step_time_quantiles_s"]
    assert times_s["quantiles"] == list(QUANTILES) and set(times_s) == {"quantiles", "0", "1"}
    assert times_s["1"] == sorted(times_s["1"]) and times_s["1"][0] > 0
    loaded = tacit.Run.load(run.save(tmp_path / "run"))
    assert loaded.record == record == json.loads((tmp_path / "run" / "run.json").read_text())["record"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has /proc")
def test_the_peak_memory_is_that_of_a_process_and_not_of_its_parent(tmp_path: Path) -> None:
    code = "from pathlib import Path; print(Path('/proc/self/status').read_text())"
    child = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    (tmp_path / "status").write_text(child.stdout)
    of_child, own = peak_memory_bytes(tmp_path / "status"), peak_memory_bytes()
    assert of_child is not None and own is not None and 1_000_000 < of_child < own / 4, "torch is loaded here only"


def test_a_simulated_run_records_its_model_and_batch() -> None:
    run = tacit.simulate(workloads.quadratic(dimension=7), tacit.AllReduce(), cluster=tacit.Cluster(workers=2), steps=2)
    expected = {"parameters": 7, "parameter_bytes": 56, "dtype": "float64", "batch": 1}
    assert {name: run.record[name] for name in expected} == expected


def test_quantiles_of_step_times_are_those_of_each_rank() -> None:
    trace = Trace()
    for step in range(101):
        trace.compute(0, step + 1, 10.0 * step, 10.0 * step + 1.0 + step / 100)
        trace.compute(1, step + 1, 10.0 * step, 10.0 * step + 5.0)
    found = step_time_quantiles(trace)
    assert found["0"] == pytest.approx([1.0, 1.1, 1.25, 1.5, 1.75, 1.9, 1.99, 2.0])
    assert found["1"] == [5.0] * len(QUANTILES)


def test_ranks_are_grouped_by_their_host() -> None:
    facts = {rank: {"machine": name, "cores": 1 + rank, "backend": "gloo"} for rank, name in enumerate("aba")}
    assert merged_facts(facts) == {
        "hosts": [[0, 2], [1]],
        "cores": {"0": 1, "1": 2, "2": 3},
        "backend": "gloo",
    }
