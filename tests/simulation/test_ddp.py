"""The baseline of DistributedDataParallel: buckets that are averaged during the backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit.simulation.scripts.run import simulate_script

PARAMETERS = 10_000  # of 8 bytes
BACKWARD_S = 0.6


def step_s(strategy: tacit.Strategy, compute: object = None, **cluster: object) -> float:
    compute = compute or tacit.Constant(mean_s=1.0)
    described = {"workers": 2, "latency_s": 0.0, "bandwidth_bytes_per_s": 80_000.0, **cluster}
    run = tacit.simulate(
        tacit.workloads.quadratic(dimension=PARAMETERS),
        strategy,
        cluster=tacit.Cluster(compute=compute, **described),
        steps=5,
        timing_only=True,
    )
    return run.summary()["time_s"] / 5


def buckets(bucket_bytes: int, **more: object) -> tacit.DDP:
    return tacit.DDP(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, **more)


def test_a_model_of_one_bucket_takes_the_time_of_all_reduce() -> None:
    assert step_s(tacit.DDP()) == step_s(tacit.AllReduce()) == pytest.approx(2.0, rel=1e-3)


def test_only_what_is_left_after_the_backward_pass_makes_the_step_longer() -> None:
    # The wire is slower than the backward pass: it is busy from the first bucket to the last.
    first_ready_s = 1.0 - BACKWARD_S * (1 - 1 / 8)
    assert step_s(buckets(10_000)) == pytest.approx(first_ready_s + 1.0, rel=1e-3)
    # The wire is faster: only the last bucket is left.
    assert step_s(buckets(10_000), bandwidth_bytes_per_s=800_000.0) == pytest.approx(1.0 + 0.1 / 8, rel=1e-3)
    assert step_s(buckets(10_000, backward=0.0)) == pytest.approx(2.0, rel=1e-3)


def test_buckets_wait_for_the_slowest_worker() -> None:
    two_speeds = [tacit.Constant(mean_s=1.0), tacit.Constant(mean_s=3.0)]
    slow_first_s = 3.0 - 3 * BACKWARD_S * (1 - 1 / 8)
    expected_s = max(3.0 + 1.0 / 8, slow_first_s + 1.0)
    assert step_s(buckets(10_000), two_speeds) == pytest.approx(expected_s, rel=1e-3)


def test_the_model_and_the_bytes_are_those_of_all_reduce() -> None:
    runs = [
        tacit.simulate(tacit.workloads.digits(), strategy, cluster=tacit.Cluster(workers=4), steps=6)
        for strategy in (tacit.AllReduce(weights="equal"), buckets(1000))
    ]
    assert (runs[0].parameters == runs[1].parameters).all()
    sent = [run.summary()["bytes_sent"] for run in runs]
    assert sent[1] == pytest.approx(sent[0], rel=1e-3)


def test_bucket_sizes_of_many_small_parameters() -> None:
    assert list(tacit.DDP().buckets([30 * 2**20], 4)) == [2**18, *[25 * 2**18] * 4, 19 * 2**18]


def test_buckets_are_those_of_distributed_data_parallel() -> None:
    """The last layers come first, and a parameter is not divided, however large."""
    embedding, hidden, last = 40 * 2**20, 2 * 2**20, 2**17
    sizes = [embedding, hidden, hidden, hidden, last, last]
    limits_bytes = [tacit.DDP().first_bucket_bytes, tacit.DDP().bucket_bytes]
    parameters = [torch.empty(size, device="meta") for size in reversed(sizes)]
    indices, _ = torch.distributed._compute_bucket_assignment_by_size(parameters, limits_bytes)
    expected = [sum(parameters[place].numel() for place in bucket) for bucket in indices]
    assert list(tacit.DDP().buckets(sizes, 4)) == expected == [2 * last, 3 * hidden + embedding]


LAYERS = """
import torch, tacit
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(50, 50, bias=False) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tacit.attach(model, optimizer, tacit.AllReduce(), steps=5) as session:
    while not session.is_done:
        optimizer.zero_grad()
        model(torch.ones(1, 50)).sum().backward()
        optimizer.step()
"""


def test_a_script_is_simulated_with_the_same_overlap(tmp_path: Path) -> None:
    """Eight layers of 10,000 bytes: buckets of one layer, or of two where a limit is passed within the second."""
    (tmp_path / "train.py").write_text(LAYERS)
    model = nn.Sequential(*(nn.Linear(50, 50, bias=False) for _ in range(8)))
    task = tacit.workloads.custom(model, nn.functional.mse_loss, data=(torch.ones(8, 50), torch.ones(8, 50)))
    cluster = tacit.Cluster(
        workers=2, compute=tacit.Constant(mean_s=1.0), latency_s=0.0, bandwidth_bytes_per_s=80_000.0
    )
    for bucket_bytes, first in ((10_000, 1 / 8), (10_001, 2 / 8)):
        strategy = buckets(bucket_bytes)
        script = simulate_script(tmp_path / "train.py", cluster=cluster, strategy=strategy)
        same = tacit.simulate(task, strategy, cluster=cluster, steps=5, timing_only=True)
        expected_s = 1.0 - BACKWARD_S * (1 - first) + 1.0
        for run in (script, same):
            assert run.summary()["time_s"] / 5 == pytest.approx(expected_s, rel=2e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"backward": 1.5}, "is a share of a step's time; give 0 to 1"), ({"bucket_bytes": 0}, "must be at least 1")],
)
def test_wrong_arguments_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacit.DDP(**wrong)
