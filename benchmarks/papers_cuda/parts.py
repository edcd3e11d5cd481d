"""What each part of the papers' benchmark on a GPU trains: methods, workers, lengths, learning rates.

Lengths. 40 epochs of 20,000 pictures are 1,560 steps of 16 × 32, and full communication reaches 67.9 % in them. So the
seeds of part 1 train for 80 epochs, 3,120 steps; rates are searched at 40, which keeps the runs already made. All parts
together take about two hours of an H200, which does not allow 160.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import tacit
from tacit.cluster.delays import Delay
from tacit.strategies import Strategy
from tacit.training.schedules import Schedule

TUNING_SEED: Final = 100
SEEDS: Final = (0, 1, 2)
STEP_DECAY: Final = tacit.StepDecay(at=(0.5, 0.75), by=0.1)

Method = Strategy[Any] | Callable[[float], Strategy[Any]]
"""A strategy, or one that depends on the learning rate."""

Methods = Mapping[str, Method]


@dataclass(frozen=True)
class Setting:
    """How the runs of a group train; ``epochs`` for the seeds, ``tuning_epochs`` for the search.

    is_timed: runs end at the virtual time in which asynchronous SGD takes that many epochs.
    seconds_per_epoch: of an H200, for the cost: 0.65 was measured for 16 workers with batches of 32, others are guesses.
    """

    workers: int
    epochs: int
    tuning_epochs: int
    split: str = "shuffled"
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Schedule | None = STEP_DECAY
    compute: Delay = tacit.Constant(mean_s=0.1)
    bandwidth_bytes_per_s: float = 1.25e9
    latency_s: float = 5e-5
    is_timed: bool = False
    seconds_per_epoch: float = 0.65

    def cluster(self) -> tacit.Cluster:
        return tacit.Cluster(
            workers=self.workers,
            compute=self.compute,
            latency_s=self.latency_s,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
        )


@dataclass(frozen=True, eq=False)
class Group:
    """The methods of one table.

    rates: those of the search. like: take the best rate of this group times ``factors`` instead. most: largest number
    of rates; the search goes beyond an edge while the best lies on it.
    """

    part: int
    name: str
    setting: Setting
    methods: Methods
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    most: int = 6
    like: str | None = None
    factors: tuple[float, ...] = (1.0,)

    def strategy(self, method: str, lr: float) -> Strategy[Any]:
        made = self.methods[method]
        return made if isinstance(made, Strategy) else made(lr)

    @property
    def tried(self) -> int:
        """Number of rates that every method tries at least, and that need a run."""
        if self.like is None:
            return len(self.rates)
        return 0 if len(self.factors) == 1 else len(self.factors)

    def cost_s(self) -> float:
        """Return seconds of an H200 for all runs of the group, without rates beyond an edge."""
        epochs = self.tried * self.setting.tuning_epochs + len(SEEDS) * self.setting.epochs
        return len(self.methods) * epochs * self.setting.seconds_per_epoch


def _adpsgd() -> list[Group]:
    methods: Methods = {
        "full communication": tacit.AllReduce(),
        "CPSGD": tacit.LocalSGD(period=tacit.Every(8)),
        "ADPSGD": tacit.LocalSGD(period=tacit.VariancePeriod(initial=4)),
        "RatePeriod, power 1": tacit.LocalSGD(period=tacit.RatePeriod(initial=4, power=1)),
        "RatePeriod, power 2": tacit.LocalSGD(period=tacit.RatePeriod(initial=4, power=2)),
        "QSGD, 8 bit": tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()),
        "QSGD, 4 bit": tacit.CompressedGradient(compressor=tacit.QSGD(bits=4), feedback=tacit.NoFeedback()),
    }
    with_feedback: Methods = {  # not the paper's: EF21 shrinks what an unbiased compressor sends
        "QSGD, 8 bit, EF21": tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.EF21()),
        "QSGD, 4 bit, EF21": tacit.CompressedGradient(compressor=tacit.QSGD(bits=4), feedback=tacit.EF21()),
    }
    setting = Setting(workers=16, epochs=80, tuning_epochs=40)
    other = Setting(workers=16, epochs=80, tuning_epochs=40, split="dirichlet")
    return [
        Group(1, "shuffled", setting, {**methods, **with_feedback}),
        Group(1, "dirichlet", other, methods, like="shuffled", factors=(0.5, 1.0), most=3),
    ]


def _ef21() -> list[Group]:
    top = tacit.TopK(fraction=0.05)
    methods: Methods = {
        "SGD": tacit.AllReduce(),
        "EF": tacit.CompressedGradient(compressor=top, feedback=tacit.ErrorFeedback()),
        "EF21": tacit.CompressedGradient(compressor=top, feedback=tacit.EF21()),
        "EF21-SGDM": tacit.CompressedGradient(compressor=top, feedback=tacit.EF21Momentum(eta=0.1)),
    }
    setting = Setting(workers=5, epochs=60, tuning_epochs=20, batch=128, momentum=0.0, seconds_per_epoch=0.6)
    return [Group(3, "n = 5", setting, methods)]


def _servers() -> list[Group]:
    methods: Methods = {
        "Sync": tacit.KSync(k=8),
        "K-sync": tacit.KSync(k=4),
        "K-batch-sync": tacit.KBatchSync(k=4),
        "Async": tacit.KAsync(k=1),
        "K-async": tacit.KAsync(k=4),
        "K-batch-async": tacit.KBatchAsync(k=4),
        "Async, C = 0.005 η": lambda lr: tacit.KAsync(k=1, rate=tacit.StalenessRate(c=0.005 * lr)),
        "Async, C = 0.05 η": lambda lr: tacit.KAsync(k=1, rate=tacit.StalenessRate(c=0.05 * lr)),
        "AdaSync": tacit.AdaSync(tacit.KAsync(k=1), every_s=10.0),
    }
    common: dict[str, Any] = {
        "workers": 8, "epochs": 12, "tuning_epochs": 6, "momentum": 0.0, "schedule": None, "is_timed": True,
        "latency_s": 0.0, "bandwidth_bytes_per_s": float("inf"), "seconds_per_epoch": 1.8,
    }  # fmt: skip
    exponential = Setting(compute=tacit.Exponential(mean_s=1.0), **common)
    pareto = Setting(compute=tacit.Pareto(minimum_s=0.5, shape=2.0), **common)
    return [
        Group(4, "exponential", exponential, methods, rates=(0.03, 0.06, 0.12, 0.24), most=5),
        Group(4, "Pareto", pareto, methods, like="exponential"),
    ]


def _swarm() -> list[Group]:
    eight = tacit.Lattice(bits=8)
    few: dict[str, Method] = {
        "SwarmSGD, H = 2": tacit.SwarmSGD(local_steps=2),
        "SwarmSGD, H = 4": tacit.SwarmSGD(local_steps=4),
        "SwarmSGD, H = 4, 8 bit": tacit.SwarmSGD(local_steps=4, compressor=eight),
        "LocalSGD, every 4": tacit.LocalSGD(period=tacit.Every(4)),
        "large-batch SGD": tacit.AllReduce(),
    }
    methods: Methods = few | {
        "SwarmSGD, H = 2, 8 bit": tacit.SwarmSGD(local_steps=2, compressor=eight),
        "D-PSGD on a ring": tacit.DPSGD(topology=tacit.Ring()),
        "AD-PSGD": tacit.AsynchronousDPSGD(),
        "SGP": tacit.SGP(topology=tacit.OnePeer()),
    }
    common: dict[str, Any] = {
        "epochs": 40, "tuning_epochs": 20, "compute": tacit.ShiftedExponential(shift_s=0.015, tail_mean_s=0.005),
        "bandwidth_bytes_per_s": 1.25e8, "latency_s": 1e-4, "seconds_per_epoch": 0.8,
    }  # fmt: skip
    return [
        Group(2, "16 nodes", Setting(workers=16, **common), methods, rates=(0.05, 0.1, 0.2), most=5),
        # Batches of 8: as many steps an epoch as with 16 nodes.
        Group(2, "64 nodes", Setting(workers=64, batch=8, **common), few, like="16 nodes"),
    ]


GROUPS: Final = (*_adpsgd(), *_ef21(), *_servers(), *_swarm())
"""In the order in which they run: parts 1, 3, 4, 2."""

TITLES: Final = {
    1: "ADPSGD's table: ResNet-20 on CIFAR-10",
    2: "SwarmSGD's table: ResNet-20 on CIFAR-10",
    3: "EF21's figure: ResNet-20 on CIFAR-10, Top 5 %",
    4: "K of P servers: ResNet-20 on CIFAR-10",
}


def group_of(part: int, name: str) -> Group:
    return next(group for group in GROUPS if (group.part, group.name) == (part, name))


def quick_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the same groups with one epoch and one rate."""
    return [
        replace(
            group,
            setting=replace(group.setting, epochs=2, tuning_epochs=1, batch=4),
            rates=group.rates[:1],
            factors=(1.0,),
            most=1,
        )
        for group in groups
    ]
