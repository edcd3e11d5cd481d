"""Runs in which the hook of all ranks is one call: the same results as with fibers, and used only where that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.strategy import ActsForAll
from tacit.core.worker import AllWorkers, Worker
from tacit.errors import MisplacedCall, NotFinite

QUADRATIC = workloads.quadratic(dimension=40, noise=0.1)
TOP = tacit.TopK(fraction=0.1)


def both(strategy: tacit.Strategy, **options: Any) -> tuple[tacit.Run, tacit.Run]:
    """Return the run of the default host and that of threads."""
    cluster = {"workers": 5, "compute": tacit.Exponential(mean_s=0.02), "speed": {3: 0.4}, **options.pop("cluster", {})}
    options = {"workload": QUADRATIC, "steps": 17, "cluster": tacit.Cluster(**cluster), "evaluate_every": 4, **options}
    workload = options.pop("workload")
    own, other = (tacit.simulate(workload, strategy, host=host, **options) for host in (None, "thread"))
    return own, other


def check_equal(own: tacit.Run, other: tacit.Run) -> None:
    assert own.record["host"] == "lockstep"
    assert own.trace.digest == other.trace.digest
    assert torch.equal(own.parameters, other.parameters)
    assert own.history == other.history


EXCHANGES: dict[str, tuple[tacit.Compressor, Any]] = {
    "EF21": (TOP, tacit.EF21()),
    "EF21 that begins in full": (TOP, tacit.EF21(init="full")),
    "EF21-SGDM": (TOP, tacit.EF21Momentum()),
    "EF21-HB": (TOP, tacit.EF21HeavyBall()),
    "EF21-PP": (TOP, tacit.EF21Partial(probability=0.5)),
    "EF21-W": (TOP, tacit.EF21Weighted(weights=(1.0, 2.0, 3.0, 4.0, 5.0))),
    "EF21+": (TOP, tacit.EF21Plus()),
    "EF21-BC": (TOP, tacit.EF21Bidirectional(master=TOP)),
    "EF14": (TOP, tacit.ErrorFeedback()),
    "QSGD": (tacit.QSGD(bits=4), tacit.NoFeedback()),
    "Rand-k": (tacit.RandomK(fraction=0.1), tacit.EF21()),
    "low rank": (tacit.LowRank(rank=1), tacit.ErrorFeedback()),
}


@pytest.mark.parametrize(("compressor", "feedback"), EXCHANGES.values(), ids=EXCHANGES)
def test_results_are_those_of_fibers(compressor: tacit.Compressor, feedback: Any):
    strategy = tacit.CompressedGradient(compressor=compressor, feedback=feedback, aggregate="gather")
    check_equal(*both(strategy, momentum=0.9, schedule=tacit.Cosine()))


RUNS: dict[str, dict[str, Any]] = {
    "one worker": {"cluster": {"workers": 1, "speed": {}}},
    "arrays in the trace": {"cluster": {"workers": 70}},
    "slow spells": {"cluster": {"compute": tacit.SlowSpells(healthy_mean_s=0.1, spell_mean_s=0.1)}},
    "slow links": {"cluster": {"links": {(1, 2): tacit.cluster.Link(latency_s=0.2)}}},
    "costs": {"cluster": {"costs": {"flatten": (1e-6, 1e-3), "encode TopK": 2e-6, "decode TopK": 1e-6}}},
    "batches of different sizes": {
        "workload": workloads.digits(model="softmax", split="dirichlet", alpha=0.1, batch_size=100)
    },
    "Adam": {"optimizer": "adam", "lr": 0.01},
    "an optimizer for each worker": {"optimizer": lambda parameters: torch.optim.Rprop(parameters)},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_runs_have_the_results_of_fibers(options: dict[str, Any], weights: Any):
    check_equal(*both(tacit.CompressedGradient(compressor=TOP, weights=weights), **options))


@pytest.mark.parametrize("compute", [tacit.Constant(mean_s=0.02), tacit.Exponential(mean_s=0.02)], ids=str)
@pytest.mark.parametrize("lr", [9.0, 1e30])
def test_numbers_that_are_not_finite_end_the_run_as_with_fibers(compute: Any, lr: float):
    found = []
    for host in (None, "thread"):
        with pytest.raises(NotFinite) as caught:
            tacit.simulate(
                QUADRATIC,
                tacit.CompressedGradient(compressor=TOP),
                cluster=tacit.Cluster(workers=3, compute=compute),
                steps=4000,
                lr=lr,
                host=host,
            )
        assert caught.value.run is not None
        found.append((str(caught.value), caught.value.run.trace.digest, caught.value.run.history))
    assert found[0] == found[1]


@dataclass(frozen=True, kw_only=True)
class Blocking(tacit.Strategy[None], ActsForAll):
    """A strategy whose hook of all ranks lets one of them communicate alone."""

    def acts_for_all(self, worker: Worker) -> bool:
        return True

    def before_step_of_all(self, ranks: AllWorkers, states: Sequence[None]) -> None:
        ranks.workers[1].network.all_reduce_mean(ranks.gradients[1])

    def before_step(self, worker: Worker, state: None) -> None:
        worker.gradient = worker.network.all_reduce_mean(worker.gradient)


def test_a_worker_that_communicates_alone_is_refused():
    with pytest.raises(MisplacedCall, match=r"acts_for_all\(…\) is True, but a hook calls network.all_reduce_mean"):
        tacit.simulate(QUADRATIC, Blocking(), cluster=tacit.Cluster(workers=3), steps=2)
