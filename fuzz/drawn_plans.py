"""Drawn plans of faults: a cluster, its faults and the settings of a run, all from one seed and the name of a strategy."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch

import tacit
from tacit import workloads

TOP = tacit.TopK(fraction=0.3)
_FEEDBACK = {
    "EF21": tacit.EF21(),
    "EF21-full": tacit.EF21(init="full"),
    "EF21-SGDM": tacit.EF21Momentum(eta=0.5),
    "EF21-HB": tacit.EF21HeavyBall(eta=0.5),
    "EF21-PP": tacit.EF21Partial(probability=0.7),
    "EF21-BC": tacit.EF21Bidirectional(master=TOP),
    "EF21+": tacit.EF21Plus(),
    "EF14": tacit.ErrorFeedback(decay=0.9),
}
COLLECTIVE: dict[str, tacit.Strategy[Any]] = {
    "AllReduce": tacit.AllReduce(),
    "DDP": tacit.DDP(),
    "LocalSGD": tacit.LocalSGD(period=tacit.Every(3)),
    "LocalSGD-variance": tacit.LocalSGD(period=tacit.VariancePeriod(initial=2)),
    "LocalSGD-loss": tacit.LocalSGD(period=tacit.LossPeriod(initial=3)),
    "LocalSGD-pace": tacit.LocalSGD(period=tacit.PacePeriod(communication=0.005)),
    "LocalSGD-one-shot": tacit.LocalSGD(period=tacit.OneShot()),
    "LocalSGD-overlap": tacit.LocalSGD(period=tacit.Every(5), overlap_steps=2),
    "LocalSGD-fragments": tacit.LocalSGD(period=tacit.Every(6), fragments=3),
    "LocalSGD-streaming": tacit.LocalSGD(period=tacit.Every(6), fragments=2, overlap_steps=2, mix=0.5),
    "LocalSGD-outer": tacit.LocalSGD(period=tacit.Every(4), outer=tacit.OuterSGD(lr=0.7, momentum=0.6)),
    "LocalSGD-Top-k": tacit.LocalSGD(period=tacit.Every(3), compressor=TOP),
    "LocalSGD-sign": tacit.LocalSGD(
        period=tacit.VariancePeriod(initial=2), compressor=tacit.Sign(), aggregate="scatter"
    ),
    **{name: tacit.CompressedGradient(compressor=TOP, feedback=feedback) for name, feedback in _FEEDBACK.items()},
    "EF21-scatter": tacit.CompressedGradient(compressor=TOP, aggregate="scatter"),
    "EF21-BC-scatter": tacit.CompressedGradient(
        compressor=TOP, feedback=tacit.EF21Bidirectional(master=TOP), aggregate="scatter"
    ),
    "DCGD-scatter": tacit.CompressedGradient(
        compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback(), aggregate="scatter"
    ),
    "Hierarchical": tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(4)), groups=2),
}
NEIGHBOURS: dict[str, tacit.Strategy[Any]] = {
    "DPSGD": tacit.DPSGD(topology=tacit.Ring()),
    "DPSGD-star": tacit.DPSGD(topology=tacit.Star()),
    "SGP": tacit.SGP(topology=tacit.OnePeer()),
    "SGP-exponential": tacit.SGP(topology=tacit.ExponentialGraph()),
    "CHOCO": tacit.CHOCO(topology=tacit.Ring(), compressor=tacit.QSGD(bits=8), gamma=0.5),
}
SWARM: dict[str, tacit.Strategy[Any]] = {
    "SwarmSGD": tacit.SwarmSGD(local_steps=2),
    "SwarmSGD-ring": tacit.SwarmSGD(local_steps=tacit.Geometric(mean=2), topology=tacit.Ring()),
    "SwarmSGD-lattice": tacit.SwarmSGD(local_steps=2, compressor=tacit.Lattice(bits=8)),
    "SwarmSGD-two-stage": tacit.SwarmSGD(local_steps=2, compressor=tacit.Lattice(bits=8), two_stage=True),
    "SwarmSGD-blocking": tacit.SwarmSGD(local_steps=2, blocking=True),
    "PullSwarm": tacit.PullSwarm(local_steps=2),
    "AsynchronousDPSGD": tacit.AsynchronousDPSGD(topology=tacit.Complete()),
}
SERVERS: dict[str, tacit.Strategy[Any]] = {
    "KSync": tacit.KSync(k=2),
    "KBatchSync": tacit.KBatchSync(k=3),
    "KAsync": tacit.KAsync(k=1),
    "KAsync-2": tacit.KAsync(k=2),
    "KBatchAsync": tacit.KBatchAsync(k=3),
    "KAsync-bounded": tacit.KAsync(k=1, rate=tacit.InverseStaleness(), maximum_staleness=3),
    "KBatchAsync-bounded": tacit.KBatchAsync(k=2, maximum_staleness=2),
    "KAsync-rate": tacit.KAsync(k=1, rate=tacit.StalenessRate(c=0.05)),
    "KBatchAsync-Top-k": tacit.KBatchAsync(k=2, compressor=TOP, model_compressor=TOP),
    "KSync-shards": tacit.KSync(k=2, shards=2),
    "KAsync-shards": tacit.KAsync(k=1, shards=2, maximum_staleness=2),
    "KBatchAsync-shards": tacit.KBatchAsync(k=2, shards=2, compressor=TOP, model_compressor=TOP),
    "KAsync-rescaled": tacit.KAsync(k=1, rate=tacit.RescaledRate()),
    "KAsync-dropping": tacit.KAsync(k=1, drop_staleness=2),
    "FedBuff": tacit.KBatchAsync(k=2, local_steps=3, outer=tacit.OuterSGD(lr=0.7, momentum=0.6)),
    "Ringleader": tacit.Ringleader(),
    "AdaSync": tacit.AdaSync(tacit.KAsync(k=1), every=5),
}
STRATEGIES = COLLECTIVE | NEIGHBOURS | SWARM | SERVERS

_NEEDS_LOSSES = ("KAsync-rate", "AdaSync", "LocalSGD-loss")
_QUADRATIC = workloads.quadratic(dimension=7, condition=5.0, noise=0.1)
_X = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
_Y = torch.randn(40, 1, generator=torch.Generator().manual_seed(2))
with torch.random.fork_rng():
    torch.manual_seed(0)
    _MODEL = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
_SEVERAL_TENSORS = workloads.custom(
    _MODEL,
    torch.nn.functional.mse_loss,
    data=(_X, _Y),
    batch_size=4,
)


@dataclass(frozen=True)
class DrawnPlan:
    """The arguments of one run. ``keeps_models``: learning rate 0, and different initial models."""

    name: str
    seed: int
    cluster: tacit.Cluster
    settings: dict[str, Any]
    keeps_models: bool = False

    @property
    def strategy(self) -> tacit.Strategy[Any]:
        return STRATEGIES[self.name]

    @property
    def workload(self) -> workloads.Workload:
        return _SEVERAL_TENSORS if self.name.endswith("shards") else _QUADRATIC

    @property
    def loses_messages(self) -> bool:
        """Whether messages are lost for good, so that who waits for one may wait for ever."""
        faults = self.cluster.faults
        return any(
            isinstance(fault, tacit.MessageLoss) or (isinstance(fault, tacit.Partition) and fault.for_s == math.inf)
            for fault in faults
        )

    @property
    def changes_members(self) -> bool:
        return any(isinstance(fault, tacit.Crash | tacit.Join) for fault in self.cluster.faults)


def draw(name: str, seed: int) -> DrawnPlan:
    """Return the plan of ``seed`` for the strategy called ``name``."""
    chance = random.Random(f"{name} {seed}")
    workers, steps = chance.randint(3, 7), chance.randint(8, 40)
    faults = _faults(chance, workers, steps * 0.03, has_server=name in SERVERS)
    late = {fault.rank for fault in faults if isinstance(fault, tacit.Join)}
    fewest = chance.randint(1, max(1, min(workers - 1, workers - len(late))))
    cluster = tacit.Cluster(
        workers=workers,
        compute=chance.choice(
            [tacit.Exponential(mean_s=0.02), tacit.Constant(mean_s=0.02), tacit.Pareto(minimum_s=0.01, shape=2.5)]
        ),
        latency_s=chance.choice([0.0, 1e-3, 0.03]),
        bandwidth_bytes_per_s=chance.choice([math.inf, 1e9, 1e6, 2e3]),
        faults=faults,
        cancel=chance.choice(["instant", "step_end"]),
        server=chance.choice(["extra", "rank0"]),
        timeout_s=chance.choice([5.0, 1800.0]),
        min_workers=fewest if name in COLLECTIVE | NEIGHBOURS else None,
        regroup_s=chance.choice([0.0, 0.01, 0.2]),
    )
    keeps_models = name in SWARM | NEIGHBOURS and "CHOCO" not in name and chance.random() < 0.3
    settings: dict[str, Any] = {
        "steps": steps,
        "seed": chance.randrange(2**30),
        "lr": 0.05,
        "momentum": chance.choice([0.0, 0.9]),
    }
    if name in ("FedBuff", "KBatchAsync-Top-k", "KBatchAsync-shards"):
        settings["momentum"] = 0.0  # with old gradients and a server's momentum or compression it would diverge
    if keeps_models:
        settings["schedule"] = _nothing
    elif name in COLLECTIVE and chance.random() < 0.2:
        settings["optimizer_state"] = "average"
        settings["momentum"] = 0.9
    settings["timing_only"] = not keeps_models and name not in _NEEDS_LOSSES and chance.random() < 0.1
    return DrawnPlan(name, seed, cluster, settings, keeps_models)


def _nothing(step: int) -> float:
    """Return the factor of the learning rate in a run that trains nothing."""
    return 0.0


def _faults(chance: random.Random, workers: int, horizon_s: float, *, has_server: bool) -> list[Any]:
    """Return one to five faults within ``horizon_s``; each worker joins late at most once, and one never does."""
    faults: list[Any] = []
    late: set[int] = set()

    def when() -> float:
        return round(chance.uniform(0, horizon_s), 4)

    for _ in range(chance.randint(1, 5)):
        rank, lasts_s = chance.randrange(workers), round(chance.uniform(0.001, horizon_s), 4)
        match chance.choice(["crash", "return", "return", "join", "pause", "slow", "cut", "cut for ever", "loss"]):
            case "crash":
                server = has_server and chance.random() < 0.1
                faults.append(tacit.Crash(rank=-1 if server else rank, at_s=when()))
            case "return":
                faults.append(tacit.Crash(rank=rank, at_s=when(), for_s=lasts_s / 2))
            case "join" if rank not in late and len(late) < workers - 1:
                late.add(rank)
                faults.append(tacit.Join(rank=rank, at_s=when()))
            case "pause":
                faults.append(tacit.Pause(rank=rank, at_s=when(), for_s=lasts_s))
            case "slow":
                for_s = chance.choice([math.inf, horizon_s / 3])
                faults.append(tacit.Slow(rank=rank, factor=chance.choice([0.3, 2.0, 8.0]), at_s=when(), for_s=for_s))
            case "cut":
                ranks = chance.sample(range(workers), chance.randint(1, workers - 1))
                faults.append(tacit.Partition(ranks=ranks, at_s=when(), for_s=lasts_s))
            case "cut for ever" if chance.random() < 0.3:
                ranks = chance.sample(range(workers), chance.randint(1, workers - 1))
                faults.append(tacit.Partition(ranks=ranks, at_s=when()))
            case "loss" if chance.random() < 0.5:
                faults.append(tacit.MessageLoss(probability=chance.choice([0.01, 0.1, 0.4]), retry_s=0.05))
    return faults
