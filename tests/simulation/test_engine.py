"""The gradient engine: together or one by one, whole or in parts, the same mathematics."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.core.parameter_layout import Layout
from tacit.simulation.engine.calls import batched_calls
from tacit.simulation.engine.calls.batched_calls import replicas_per_call
from tacit.simulation.engine.row_optimizer import MatrixOptimizer, PerWorkerOptimizer, row_optimizer
from tacit.training.optimizers import optimizer_factory

CLUSTER = tacit.Cluster(workers=5)
LOCAL = tacit.LocalSGD(period=tacit.Every(4))


def data(samples: int = 40, features: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, features, generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def own(*layers: nn.Module, **settings) -> workloads.Workload:
    torch.manual_seed(5)
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return workloads.custom(nn.Sequential(*layers), nn.functional.cross_entropy, data=data(), batch_size=4, **settings)


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), LOCAL], ids=str)
def test_vmap_and_loop_agree_to_rounding(strategy: tacit.Strategy):
    runs = [
        tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=20, engine=engine)
        for engine in ("vmap", "loop")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-4, atol=1e-5)
    assert [run.record["engine"] for run in runs] == ["vmap", "loop"]
    assert runs[0].trace.digest == runs[1].trace.digest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "workers", "engine", "reason"),
    [
        (workloads.digits(), 16, "vmap", "many small replicas"),
        (workloads.digits(), 2, "loop", "2 workers are fewer than"),
        (workloads.digits(model="cnn"), 16, "vmap", "many small replicas"),
        (
            workloads.images(torch.zeros(64, 28, 28), torch.arange(64) % 10, model="cnn", batch_size=2),
            8,
            "loop",
            "large samples",
        ),
        (workloads.digits(hidden=4000), 4, "vmap", "many small replicas"),
        (workloads.digits(hidden=30_000), 4, "loop", "parameters gain nothing"),
        (own(nn.Linear(6, 3), nn.Dropout(0.5)), 16, "loop", r"Dropout \(.*\) draws random numbers"),
        (own(nn.Linear(6, 3), nn.Dropout(0.0)), 16, "vmap", "many small"),
        (own(nn.Linear(6, 3), nn.BatchNorm1d(3)), 16, "loop", r"BatchNorm1d \(.*\) updates its buffers"),
    ],
)
def test_the_engine_is_chosen_by_a_fixed_rule(workload: workloads.Workload, workers: int, engine: str, reason: str):
    run = tacit.simulate(workload, LOCAL, cluster=tacit.Cluster(workers=workers), steps=1)
    assert run.record["engine"] == engine
    assert re.search(reason, run.record["engine_reason"])


def test_asking_for_vmap_where_it_cannot_work_is_told():
    with pytest.raises(ValueError, match=r'engine="vmap" cannot run this model: Dropout .* pass engine="auto"'):
        tacit.simulate(own(nn.Linear(6, 3), nn.Dropout(0.5)), LOCAL, cluster=CLUSTER, steps=1, engine="vmap")
    with pytest.raises(ValueError, match="engine='vmp' is unknown; did you mean 'vmap'"):
        tacit.simulate(workloads.digits(), LOCAL, cluster=CLUSTER, steps=1, engine="vmp")


def test_a_model_that_vmap_refuses_goes_on_one_by_one_and_says_so_once(caplog: pytest.LogCaptureFixture):
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return y if y.sum().item() > 0 else -y  # data-dependent: no batching rule

    torch.manual_seed(0)
    workload = workloads.custom(Branching(), nn.functional.cross_entropy, data=data(), batch_size=4)
    with caplog.at_level(logging.WARNING, logger="tacit"):
        run = tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=8)
    assert run.record["engine"] == "loop" and "vmap failed" in run.record["engine_reason"]
    assert sum("one by one" in record.message for record in caplog.records) == 1
    assert run.digest == tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=8).digest


def test_a_model_that_must_run_one_by_one_says_so_once(caplog: pytest.LogCaptureFixture):
    workload = own(nn.Linear(6, 3), nn.AlphaDropout(0.25))
    with caplog.at_level(logging.WARNING, logger="tacit"):
        for _ in range(2):
            tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=2)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["gradients are evaluated one by one: AlphaDropout (model.1) draws random numbers"]


def test_modules_that_draw_do_so_from_their_workers_stream():
    workload = own(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    torch.manual_seed(0)
    first = tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=12)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    second = tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=12)
    assert first.digest == second.digest  # the global random state plays no part …
    assert torch.equal(torch.get_rng_state(), before)  # … and is left alone


def test_batch_norm_keeps_its_statistics_per_worker():
    """One worker sees data around 10, the other around −10: each keeps its own mean, and their average is evaluated."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 1, generator=generator) + torch.tensor([10.0] * 40 + [-10.0] * 40).unsqueeze(1)
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0, affine=False), nn.Linear(1, 1))
    nn.init.constant_(model[1].weight, 1.0)
    nn.init.constant_(model[1].bias, 0.0)
    workload = workloads.custom(
        model,
        nn.functional.mse_loss,
        data=(x, x),
        split="contiguous",
        batch_size=20,
        metric=("mean", lambda prediction, target: float(prediction.mean())),
    )
    run = tacit.simulate(workload, LOCAL, cluster=tacit.Cluster(workers=2), steps=5, lr=1e-9)
    assert run.history[-1]["metric"] == pytest.approx(0.0, abs=0.5)  # one shared mean would give 10 or −10


def test_batch_norm_trains():
    workload = own(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    run = tacit.simulate(workload, LOCAL, cluster=CLUSTER, steps=60, lr=0.2)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "groups": lambda p: torch.optim.AdamW(
        [
            {"params": [q for q in p if q.ndim > 1]},
            {"params": [q for q in p if q.ndim == 1], "lr": 0.1, "weight_decay": 0.0},
        ],
        lr=0.01,
        weight_decay=0.1,
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_step_as_their_workers_would(name: str):
    """Rows at different ages, stepped whole, in part and out of order, end where one optimizer per worker ends."""
    module, workers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), 5
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    start = torch.randn(workers, layout.dimension, generator=generator)
    together, apart = start.clone(), start.clone()
    rows = row_optimizer(OPTIMIZERS[name], module, layout, together, lambda step: 1.0 / (1 + step))
    assert isinstance(rows, MatrixOptimizer)
    alone = []
    for row in apart:
        parameters = [nn.Parameter(part) for part in layout.split(row).values()]
        alone.append((parameters, OPTIMIZERS[name](parameters)))
    bases = [group["lr"] for group in alone[0][1].param_groups]
    ages = [0] * workers
    for ranks in (
        [0, 1, 2, 3, 4],
        [1, 3],
        [0, 1, 2, 3, 4],
        [4],
        [2, 3, 4],
        [0, 2, 4],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
    ):
        gradients = torch.randn(len(ranks), layout.dimension, generator=generator)
        rows.step(ranks, [ages[rank] for rank in ranks], layout.split(gradients))
        for rank, gradient in zip(ranks, gradients, strict=True):
            parameters, optimizer = alone[rank]
            for parameter, part in zip(parameters, layout.split(gradient).values(), strict=True):
                parameter.grad = part.clone()
            for group, base in zip(optimizer.param_groups, bases, strict=True):
                group["lr"] = base / (1 + ages[rank])
            optimizer.step()
            ages[rank] += 1
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=1e-7)


def test_an_optimizer_we_do_not_know_steps_worker_by_worker():
    class Normalised(torch.optim.SGD):
        """Looks at whole tensors, so rows cannot share a call."""

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.add_(parameter.grad / parameter.grad.norm(), alpha=-group["lr"])

    module = nn.Linear(3, 2)
    layout = Layout.of(module)
    made = row_optimizer(
        lambda p: Normalised(p, lr=0.1), module, layout, torch.zeros(4, layout.dimension), lambda step: 1.0
    )
    assert isinstance(made, PerWorkerOptimizer)
    run = tacit.simulate(
        workloads.digits(),
        LOCAL,
        cluster=tacit.Cluster(workers=4),
        steps=30,
        optimizer=lambda p: Normalised(p, lr=0.05),
    )
    assert run.history[-1]["loss"] < 0.7 * run.history[0]["loss"]


def test_optimizers_by_name():
    with pytest.raises(ValueError, match="optimizer='adm' is unknown; did you mean 'adam'"):
        optimizer_factory("adm", 0.1, 0.0, 0.0)
    with pytest.raises(ValueError, match=r'momentum=0.9 needs optimizer="sgd"'):
        optimizer_factory("adam", 0.1, 0.9, 0.0)
    with pytest.raises(ValueError, match="lr=0 must be positive"):
        optimizer_factory("sgd", 0, 0.0, 0.0)
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        tacit.simulate(workloads.quadratic(), LOCAL, steps=1, optimizer=lambda p: torch.optim.LBFGS(p))


def test_uneven_batches_are_evaluated_in_groups_of_one_size():
    workload = workloads.digits(split="dirichlet", alpha=0.1, batch_size=64)
    run = tacit.simulate(workload, tacit.AllReduce(), cluster=tacit.Cluster(workers=12), steps=20)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_timing_only_runs_have_the_same_times_and_bytes():
    for strategy in (tacit.AllReduce(), LOCAL):
        real = tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=20)
        timing = tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=20, timing_only=True)
        assert real.trace.digest == timing.trace.digest
        assert [row["loss"] for row in timing.history] == [None] * len(timing.history)
        assert [row["time_s"] for row in timing.history] == [row["time_s"] for row in real.history]


@pytest.mark.parametrize(
    ("dimension", "batch_size", "device", "replicas"),
    [
        (650, 1, "cpu", 1024),
        (650, 16, "cpu", 512),
        (650, 32, "cpu", 256),
        (4810, 1, "cpu", 259),
        (4810, 5000, "cpu", 256),
        (1_000_000, 1, "cpu", 32),
        (10**9, 1, "cpu", 1),
        (4810, 5000, "cuda", 1024),
    ],
)
def test_small_batches_of_small_models_allow_more_replicas_per_call(
    dimension: int, batch_size: int, device: str, replicas: int
):
    assert replicas_per_call(dimension, batch_size, torch.device(device)) == replicas


def test_workers_of_one_call_and_of_several_calls_take_the_same_steps(monkeypatch: pytest.MonkeyPatch):
    workload, cluster = workloads.quadratic(dimension=3), tacit.Cluster(workers=7)
    whole = tacit.simulate(workload, LOCAL, cluster=cluster, steps=9)
    monkeypatch.setattr(batched_calls, "NUMBERS_PER_CALL", {"cpu": 9})  # three replicas per call
    divided = tacit.simulate(workload, LOCAL, cluster=cluster, steps=9)
    assert whole.digest == divided.digest
    assert torch.equal(whole.parameters, divided.parameters)
