"""Many independent runs of local SGD inside one simulation: thirty seeds of four workers are one world of 120 workers.

A call of vmap costs about a millisecond whether it holds four rows or two hundred, so this is what makes expectations
over many seeds affordable. Each replica draws its split and its mini-batches from its own seed and averages within its
own group: it takes the same steps as ``tacit.simulate`` with that seed (``equals_plain_run`` checks it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tacit
from tacit.core.randomness import Streams
from tacit.strategies.local_sgd.periods import Period
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.workloads.workload import Evaluation, Problem, Token, Workload


class WithReplacement:
    """Mini-batches drawn independently, each sample uniformly from ``shard``: the noise that the theorems assume."""

    def __init__(self, shard: np.ndarray, batch_size: int, rng: np.random.Generator) -> None:
        self.batch_size, self._shard, self._rng = batch_size, shard, rng

    def take(self, count: int) -> list[np.ndarray]:
        return [self._shard[self._rng.integers(len(self._shard), size=self.batch_size)] for _ in range(count)]


class ReplicasProblem(Problem):
    """The samplers of several problems that share data and model."""

    def __init__(self, problems: Sequence[Any], seeds: Sequence[int], with_replacement: bool) -> None:
        self.first = problems[0]
        self.module, self.batch_size = self.first.module, self.first.batch_size
        self.samplers = [sampler for problem in problems for sampler in problem.samplers]
        if with_replacement:
            everything = np.arange(len(self.first.training))
            self.samplers = [
                WithReplacement(everything, self.batch_size, Streams(seed).numpy("with replacement", rank))
                for seed, problem in zip(seeds, problems, strict=True)
                for rank in range(len(problem.samplers))
            ]

    def collate(self, ranks: Sequence[int], tokens: Sequence[Token]) -> tuple[Tensor, ...]:
        return self.first.collate(ranks, tokens)

    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        return self.first.evaluate(parameters, buffers)


@dataclass(frozen=True)
class Replicas(Workload):
    """``base``, opened once for each seed; for models whose start does not depend on the seed."""

    base: Workload
    seeds: tuple[int, ...]
    with_replacement: bool = False  # True: from all data, not from the worker's shard

    @property
    def name(self) -> str:
        return "replicas"

    def open(self, workers: int, streams: Streams) -> ReplicasProblem:
        size = workers // len(self.seeds)
        problems = [self.base.open(size, Streams(seed)) for seed in self.seeds]
        return ReplicasProblem(problems, self.seeds, self.with_replacement)


class GroupNetwork:
    """The port, with collectives among ``group`` alone."""

    def __init__(self, network: Any, group: tuple[int, ...]) -> None:
        self._network, self._group = network, group

    def all_reduce_mean(self, tensor: Tensor, weight: float = 1.0, *, into: Tensor | None = None) -> Tensor:
        return self._network.all_reduce_mean(tensor, weight, group=self._group, into=into)


class GroupWorker:
    """A worker that believes its group to be the whole world."""

    def __init__(self, worker: Any, size: int) -> None:
        first = worker.rank // size * size
        self._worker, self.rank, self.size = worker, worker.rank - first, size
        self.network = GroupNetwork(worker.network, tuple(range(first, first + size)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


@dataclass(frozen=True, kw_only=True)
class ReplicatedLocalSGD(tacit.LocalSGD):
    """LocalSGD within groups of ``workers`` consecutive ranks; ``models`` receives what each group would report."""

    workers: int
    models: dict[int, Tensor] = field(default_factory=dict, init=False, compare=False)

    def init(self, worker: Any) -> LocalSGDState:
        return super().init(GroupWorker(worker, self.workers))

    def after_step(self, worker: Any, state: LocalSGDState) -> None:
        super().after_step(GroupWorker(worker, self.workers), state)

    def finish(self, worker: Any, state: LocalSGDState) -> None:
        super().finish(GroupWorker(worker, self.workers), state)
        if worker.rank % self.workers == 0:
            self.models[worker.rank // self.workers] = worker.parameters.clone()


@dataclass(frozen=True)
class Outcome:
    """The reported model of each seed, one row each, and the rounds that each run took."""

    models: Tensor
    rounds: int


def run_replicas(
    base: Workload,
    period: Period,
    *,
    workers: int,
    seeds: Sequence[int],
    steps: int,
    with_replacement: bool = False,
    together: int = 256,
    **settings: Any,
) -> Outcome:
    """Run local SGD once for each seed, at most ``together`` workers in one simulation."""
    per_world = max(1, together // workers)
    models, rounds = [], 0
    for start in range(0, len(seeds), per_world):
        some = tuple(seeds[start : start + per_world])
        strategy = ReplicatedLocalSGD(period=period, workers=workers)
        cluster = tacit.Cluster(workers=workers * len(some), compute=tacit.Constant(mean_s=0.02))
        run = tacit.simulate(
            Replicas(base, some, with_replacement),
            strategy,
            cluster=cluster,
            steps=steps,
            evaluate_every=steps,
            engine="vmap",
            **settings,
        )
        models += [strategy.models[place] for place in range(len(some))]
        rounds = run.summary()["rounds"]  # rounds of a group are counted by group
    return Outcome(torch.stack(models), rounds)


def equals_plain_run(base: Workload, period: Period, *, workers: int, seed: int, steps: int, **settings: Any) -> float:
    """Return the largest difference between a seed's model among replicas and from ``tacit.simulate`` alone, relative."""
    among = run_replicas(base, period, workers=workers, seeds=(seed + 1, seed), steps=steps, **settings).models[1]
    cluster = tacit.Cluster(workers=workers, compute=tacit.Constant(mean_s=0.02))
    alone = tacit.simulate(
        base, tacit.LocalSGD(period=period), cluster=cluster, steps=steps, seed=seed, evaluate_every=steps, **settings
    ).parameters
    return float((among - alone).abs().max() / alone.abs().max())
