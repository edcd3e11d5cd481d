"""Runs in which one hook acts for all ranks: the same results as with fibers, and used only where that holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.worker import Worker
from tacit.errors import MisplacedCall, NotFinite

QUADRATIC = workloads.quadratic(dimension=6, noise=0.1)
RANDOM_TIMES = tacit.Exponential(mean_s=0.02)


def both(strategy: tacit.Strategy, cluster: tacit.Cluster, **options: Any) -> tuple[tacit.Run, tacit.Run]:
    """Return the run of the default host and that of threads."""
    options = {"workload": QUADRATIC, "steps": 37, **options}
    workload = options.pop("workload")
    own, other = (tacit.simulate(workload, strategy, cluster=cluster, host=h, **options) for h in (None, "thread"))
    return own, other


def check_equal(own: tacit.Run, other: tacit.Run) -> None:
    assert own.record["host"] == "lockstep"
    assert own.trace.digest == other.trace.digest
    assert torch.equal(own.parameters, other.parameters)
    assert own.history == other.history


@pytest.mark.parametrize(
    "period",
    [tacit.Every(1), tacit.Every(8), tacit.OneShot(), tacit.PeriodList((3, 5, 2)), tacit.LinearPeriod()],
    ids=str,
)
@pytest.mark.parametrize("compute", [tacit.Constant(mean_s=0.02), RANDOM_TIMES], ids=str)
@pytest.mark.parametrize("timing_only", [False, True], ids=["models", "timing"])
def test_results_are_those_of_fibers(period: tacit.Period, compute: Any, timing_only: bool):
    cluster = tacit.Cluster(workers=5, compute=compute, speed={3: 0.4})
    check_equal(*both(tacit.LocalSGD(period=period), cluster, timing_only=timing_only, evaluate_every=3))


CLUSTERS = {
    "one worker": {"workers": 1},
    "arrays in the trace": {"workers": 70},
    "slow spells": {"workers": 3, "compute": tacit.SlowSpells(healthy_mean_s=0.1, spell_mean_s=0.1)},
    "ranks leave one by one": {"workers": 4, "links": {(1, 2): tacit.cluster.Link(latency_s=0.2)}},
    "costs": {"workers": 4, "costs": {"flatten": (1e-6, 1e-3), "divide": 2e-6}},
}


@pytest.mark.parametrize("options", CLUSTERS.values(), ids=CLUSTERS)
def test_clusters_have_the_results_of_fibers(options: dict[str, Any]):
    cluster = tacit.Cluster(**{"compute": RANDOM_TIMES, **options})
    strategy = tacit.LocalSGD(period=tacit.RatePeriod(initial=2), warmup_steps=2)
    check_equal(*both(strategy, cluster, momentum=0.9, schedule=tacit.Cosine()))


def test_batches_that_are_drawn_in_parts_are_those_of_fibers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tacit.simulation.lockstep.columns._SAMPLES_DRAWN", 64)  # parts that end within a period
    cluster = tacit.Cluster(workers=4, compute=RANDOM_TIMES)
    digits = workloads.digits(model="softmax", batch_size=4)
    strategy = tacit.LocalSGD(period=tacit.PeriodList((1, 4, 2, 7)))
    check_equal(*both(strategy, cluster, workload=digits, evaluate_every=5))


@dataclass(frozen=True, kw_only=True)
class Derived(tacit.LocalSGD):
    """A subclass, whose ranks may act differently."""


TOP = tacit.TopK(fraction=0.25)


@dataclass(frozen=True, kw_only=True)
class DerivedCompressed(tacit.CompressedGradient):
    """A subclass, whose hook may do something else."""


OTHERWISE: dict[str, tuple[tacit.Strategy, dict[str, Any], dict[str, Any]]] = {
    "subclass": (Derived(), {}, {}),
    "loss": (tacit.LocalSGD(period=tacit.LossPeriod()), {}, {}),
    "variance": (tacit.LocalSGD(period=tacit.VariancePeriod()), {}, {}),
    "outer": (tacit.LocalSGD(outer=tacit.SlowMo()), {}, {}),
    "overlap": (tacit.LocalSGD(overlap_steps=1), {}, {}),
    "compressor": (tacit.LocalSGD(compressor=tacit.TopK(fraction=0.5)), {}, {}),
    "faults": (tacit.LocalSGD(), {"faults": [tacit.Pause(rank=0, at_s=0.1, for_s=0.1)]}, {}),
    "until_loss": (tacit.LocalSGD(), {}, {"until_loss": 1e-9}),
    "evaluations at times": (tacit.LocalSGD(), {}, {"evaluate_every_s": 0.2}),
    "compressed subclass": (DerivedCompressed(compressor=TOP), {}, {}),
    "scatter": (tacit.CompressedGradient(compressor=TOP, aggregate="scatter"), {}, {}),
    "timing only": (tacit.CompressedGradient(compressor=TOP), {}, {"timing_only": True}),
    "compressed, faults": (tacit.CompressedGradient(), {"faults": [tacit.Pause(rank=0, at_s=0.1, for_s=0.1)]}, {}),
    "compressed, until_loss": (tacit.CompressedGradient(), {}, {"until_loss": 1e-9}),
    "compressed, evaluations at times": (tacit.CompressedGradient(), {}, {"evaluate_every_s": 0.2}),
}


@pytest.mark.parametrize(("strategy", "cluster", "options"), OTHERWISE.values(), ids=OTHERWISE)
def test_fibers_run_what_is_not_alike(strategy: tacit.Strategy, cluster: dict[str, Any], options: dict[str, Any]):
    run = tacit.simulate(QUADRATIC, strategy, cluster=tacit.Cluster(workers=3, **cluster), steps=12, **options)
    assert run.record["host"] != "lockstep"


def test_fibers_run_batches_of_different_sizes():
    workload = workloads.digits(model="softmax", split="dirichlet", alpha=0.05, batch_size=600)
    run = tacit.simulate(workload, tacit.LocalSGD(), cluster=tacit.Cluster(workers=3), steps=12)
    assert run.record["host"] != "lockstep"


def test_a_loss_that_is_not_finite_ends_the_run_as_with_fibers():
    found = []
    for host in (None, "thread"):
        with pytest.raises(NotFinite) as caught:
            tacit.simulate(QUADRATIC, tacit.LocalSGD(), cluster=tacit.Cluster(workers=3), steps=4000, lr=9.0, host=host)
        assert caught.value.run is not None
        found.append((str(caught.value), caught.value.run.trace.digest, caught.value.run.history))
    assert found[0] == found[1]


@dataclass(frozen=True, kw_only=True)
class Unlike(tacit.LocalSGD):
    """Says that ranks act alike, and lets them use ``call``."""

    call: str

    @property
    def ranks_act_alike(self) -> bool:
        return True

    def after_step(self, worker: Worker, state: Any) -> None:
        model = worker.parameters
        match self.call:
            case "gather":
                worker.network.all_gather(model)  # type: ignore[type-var]
            case "group":
                worker.network.all_reduce_mean(model, group=[0, 1], into=model)
            case "copy":
                worker.network.all_reduce_mean(model.clone(), into=model)


@pytest.mark.parametrize(("call", "says"), [("gather", "network.all_gather"), ("group", "group="), ("copy", "into")])
def test_ranks_that_do_not_act_alike_as_announced_are_refused(call: str, says: str):
    with pytest.raises(MisplacedCall, match=rf"ranks_act_alike is True, but a hook .*{says}"):
        tacit.simulate(QUADRATIC, Unlike(call=call), cluster=tacit.Cluster(workers=3), steps=12)
