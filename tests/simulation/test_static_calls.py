"""Calls with static inputs (captured and compiled engines) compute what plain calls compute."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.simulation.engine.calls import static_calls
from tacit.simulation.engine.calls.programs import Program
from tacit.simulation.engine.calls.static_calls import padded_size
from tacit.simulation.engine.choice import Choice, choose_engine

pytestmark = pytest.mark.slow

simulate_module = sys.modules["tacit.simulation.simulate"]
CLUSTER = tacit.Cluster(workers=5, compute=tacit.Exponential(mean_s=0.1))
LOCAL = tacit.LocalSGD(period=tacit.Every(4))


@pytest.fixture
def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``engine="captured"`` run on the CPU, where programs run without being captured."""

    def chosen(wanted: str, *rest) -> Choice:
        return Choice("captured", "a test") if wanted == "captured" else choose_engine(wanted, *rest)

    monkeypatch.setattr(simulate_module, "choose_engine", chosen)


@pytest.mark.parametrize(
    ("replicas", "most", "size"),
    [(1, 64, 1), (3, 64, 4), (9, 64, 16), (17, 64, 24), (33, 64, 40), (64, 64, 64), (65, 1024, 80), (9, 10, 10)],
)
def test_calls_are_padded_to_few_sizes(replicas: int, most: int, size: int):
    assert padded_size(replicas, most) == size


def test_padding_wastes_at_most_an_eighth_of_large_calls_and_compiled_sizes_are_powers_of_two():
    assert all(padded_size(n, 10_000) < n + max(8, n / 4) for n in range(1, 1500))
    assert {padded_size(n, 10_000, by_powers=True) for n in range(1, 1025)} == {2**power for power in range(11)}


STRATEGIES = [LOCAL, tacit.AllReduce(), tacit.SwarmSGD(local_steps=2), tacit.KAsync(k=2), tacit.KSync(k=3)]


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize(
    "settings",
    [{"lr": 0.2}, {"momentum": 0.9, "weight_decay": 1e-3}, {"optimizer": "adam", "lr": 0.01}],
    ids=["sgd", "momentum", "adam"],
)
def test_static_and_plain_calls_agree_to_rounding(strategy: tacit.Strategy, settings: dict):
    plain, static = (
        tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=13, engine=engine, **settings)
        for engine in ("vmap", "captured")
    )
    assert [plain.record["engine"], static.record["engine"]] == ["vmap", "captured"]
    torch.testing.assert_close(static.parameters, plain.parameters, rtol=1e-4, atol=1e-6)
    assert static.trace.digest == plain.trace.digest


OPTIMIZERS = {
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),  # has no flat form
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], lr=0.1),  # nor has this
}


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gives_the_same_with_static_calls(name: str):
    """SwarmSGD's workers are at different steps, so that rows of one call differ in age and learning rate."""
    runs = [
        tacit.simulate(
            workloads.digits(),
            tacit.SwarmSGD(local_steps=2),
            cluster=CLUSTER,
            steps=9,
            engine=engine,
            optimizer=OPTIMIZERS[name],
            schedule=lambda step: 1 / (1 + step),
        )
        for engine in ("vmap", "captured")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("without_graphs")
def test_a_worker_that_returns_starts_with_a_new_optimizer():
    cluster = tacit.Cluster(workers=4, faults=[tacit.Crash(rank=1, at_s=0.5, for_s=0.5)])
    runs = [
        tacit.simulate(workloads.digits(), tacit.SwarmSGD(), cluster=cluster, steps=40, momentum=0.9, engine=engine)
        for engine in ("vmap", "captured")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize("strategy", [LOCAL, tacit.AllReduce()], ids=str)
def test_a_loss_that_is_not_finite_is_reported_with_worker_and_step(strategy: tacit.Strategy):
    errors = []
    for engine in ("vmap", "captured"):
        with pytest.raises(tacit.NotFinite) as caught:
            tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=100, lr=1e6, engine=engine)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "worker" in errors[0]


@pytest.mark.usefixtures("without_graphs")
def test_losses_reach_the_hooks_that_use_them():
    strategy = tacit.LocalSGD(period=tacit.LossPeriod(initial=2))
    runs = [
        tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=30, engine=engine)
        for engine in ("vmap", "captured")
    ]
    assert runs[0].trace.digest == runs[1].trace.digest  # the periods, which the losses decide, are equal


@pytest.mark.usefixtures("without_graphs")
def test_what_cannot_be_captured_runs_in_plain_calls_with_the_reason_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(self: Program, pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    monkeypatch.setattr(Program, "prepare", refuse)
    with caplog.at_level(logging.WARNING, logger="tacit"):
        runs = [
            tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=8, engine="captured") for _ in range(2)
        ]
    reason = "capturing failed: operation not permitted when stream is capturing"
    assert (runs[0].record["engine"], runs[0].record["engine_reason"]) == ("vmap", reason)
    assert [record.getMessage() for record in caplog.records] == [
        f"gradients are evaluated in plain calls of vmap: {reason}"
    ]
    plain = tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=8, engine="vmap")
    torch.testing.assert_close(runs[0].parameters, plain.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("without_graphs")
def test_a_call_that_does_not_fit_into_memory_is_divided(monkeypatch: pytest.MonkeyPatch):
    prepare = Program.prepare

    def limited(self: Program, pool: object) -> None:
        if self.size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        prepare(self, pool)

    monkeypatch.setattr(Program, "prepare", limited)
    run = tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=8, engine="captured")
    assert run.record["engine_reason"].endswith("memory limits a call to 2")


def test_compiled_calls_compile_the_gradient(monkeypatch: pytest.MonkeyPatch):
    compiled = []

    def record(function, **settings):
        compiled.append(settings)
        return function

    monkeypatch.setattr(torch, "compile", record)
    run = tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=8, engine="compiled")
    plain = tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=8, engine="vmap")
    assert compiled == [{"dynamic": False, "fullgraph": True}] and run.record["engine"] == "compiled"
    torch.testing.assert_close(run.parameters, plain.parameters, rtol=1e-4, atol=1e-6)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Count what ``torch.compile`` compiles; the compiled functions run as they were traced."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


@torch._dynamo.config.patch(cache_size_limit=2)
def test_more_sizes_are_compiled_than_torch_allows_by_default(compilations: CompileCounter):
    workload = workloads.digits(model="softmax")
    for workers in (5, 6, 7, 5):
        cluster = tacit.Cluster(workers=workers)
        run = tacit.simulate(workload, tacit.AllReduce(), cluster=cluster, steps=2, engine="compiled")
        assert run.record["engine"] == "compiled"
    assert compilations.frame_count == 3


def test_too_many_compiled_sizes_are_reported(compilations: CompileCounter, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(static_calls, "MOST_COMPILED_SIZES", 1)
    workload = workloads.digits(model="softmax")
    runs = [
        tacit.simulate(workload, tacit.AllReduce(), cluster=tacit.Cluster(workers=n), steps=2, engine="compiled")
        for n in (5, 6)
    ]
    assert [run.record["engine"] for run in runs] == ["compiled", "vmap"]
    assert runs[1].record["engine_reason"].startswith("compiling failed: ")


def test_captured_calls_need_cuda_and_auto_chooses_them_there():
    with pytest.raises(ValueError, match=r'engine="captured" records CUDA graphs and needs device="cuda"'):
        tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=1, engine="captured")
    problem = workloads.digits().open(2, Streams(0))
    assert choose_engine("auto", problem, 2, torch.device("cuda")).engine == "captured"


def test_a_problem_without_indices_runs_with_static_calls(without_graphs: None):
    """A quadratic has no samples to select; its batches are copied into the static inputs."""
    workload = workloads.custom(
        nn.Linear(3, 2), nn.functional.mse_loss, data=(torch.randn(20, 3), torch.randn(20, 2)), batch_size=None
    )
    runs = [tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=8, engine=engine) for engine in ("vmap", "captured")]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_graphs_agree_with_plain_calls_on_cuda(strategy: tacit.Strategy):
    runs = [
        tacit.simulate(
            workloads.digits(), strategy, cluster=CLUSTER, steps=40, device="cuda", engine=engine, momentum=0.9
        )
        for engine in ("vmap", "captured", "captured")
    ]
    assert [run.record["engine"] for run in runs] == ["vmap", "captured", "captured"]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-3, atol=1e-4)
    assert runs[1].digest == runs[2].digest
