"""What the tests of servers share: small runs, and the models that a run's own notes say its server must have had."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.record.trace import Event
from tacit.strategies import Strategy

KINDS = (tacit.KSync, tacit.KBatchSync, tacit.KAsync, tacit.KBatchAsync)
SYNC, ASYNC = KINDS[:2], KINDS[2:]
FREE = {"latency_s": 0.0, "bandwidth_bytes_per_s": math.inf}
QUADRATIC = workloads.quadratic(dimension=5, condition=10.0, noise=0.0, heterogeneity=1.0)

_data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SEVERAL_TENSORS = workloads.custom(
    torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).double(),
    torch.nn.MSELoss(),
    data=(_data, _data.sum(1, keepdim=True)),
    batch_size=4,
)


def simulate(
    strategy: Strategy, workload: workloads.Workload = QUADRATIC, *, steps: int = 40, seed: int = 1, **rest
) -> tacit.Run:
    network = {name: rest.pop(name) for name in ("latency_s", "bandwidth_bytes_per_s", "links") if name in rest}
    described = {name: rest.pop(name) for name in ("speed", "faults", "cancel", "server") if name in rest}
    compute = rest.pop("compute", tacit.Exponential(mean_s=1.0))
    engine = rest.pop("engine", "loop")  # gradients come one by one, too few at a time for vmap
    cluster = tacit.Cluster(workers=rest.pop("workers", 5), compute=compute, **{**FREE, **network}, **described)
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=seed, engine=engine, **rest)


def time_per_update(
    strategy: Strategy, compute: tacit.cluster.delays.Delay, workers: int, updates: int, seed: int = 0
) -> float:
    """Return the mean seconds per update of a timing-only run on a network that costs nothing."""
    smallest = workloads.quadratic(dimension=1)
    run = simulate(strategy, smallest, compute=compute, workers=workers, steps=updates, seed=seed, timing_only=True)
    return run.summary()["time_s"] / updates


def notes(run: tacit.Run, name: str) -> list[Event]:
    return [event for event in run.trace.of("note") if event.label == name]


def staleness(run: tacit.Run) -> list[float]:
    return [event.value for event in notes(run, "staleness")]


def used(run: tacit.Run) -> list[list[tuple[int, int]]]:
    """Return, update by update, which learners' gradients were used and how stale they were."""
    by_time = groupby(notes(run, "staleness"), key=lambda event: event.time_s)
    return [[(event.peer, int(event.value)) for event in together] for _, together in by_time]


Rate = Callable[[int, int, float], float]
"""η of a gradient, given the version it was taken at, its staleness and ‖w_j − w_τ‖²."""


def replayed(run: tacit.Run, rate: Rate, *, workers: int = 5, momentum: float = 0.0) -> Tensor:
    """Return w_J from the notes of a noiseless quadratic run alone: w_{j+1} = w_j − (1/K) Σ η g_i(w_τ), g_i(w) = A (w −
    b_i).
    """
    problem = QUADRATIC.open(workers, Streams(run.seed))
    models, velocity = [problem.module.x.detach().clone()], torch.zeros(5, dtype=torch.float64)
    for update, batch in enumerate(used(run)):
        step = torch.zeros_like(velocity)
        for learner, age in batch:
            old = models[update - age]
            eta = rate(update - age, age, float((models[update] - old).square().sum()))
            step += eta * problem.module.eigenvalues * (old - problem.centers[learner]) / len(batch)
        velocity = momentum * velocity + step
        models.append(models[update] - velocity)
    return models[-1]
