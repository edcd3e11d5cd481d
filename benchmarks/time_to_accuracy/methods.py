"""The methods that are compared: peers and tacit's own, each with a learning rate and at most one other parameter.

A peer is tuned as the strategy of tacit whose models are the same step by step, or nearly so: ``equals`` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tacit
from benchmarks.time_to_accuracy.tasks import Task
from tacit.planning.pace import period_of
from tacit.strategies import Strategy
from tacit.strategies.local_sgd.outer import OuterSGD
from tacit.strategies.local_sgd.periods import Every

TRIALS: Final = 6
_GRIDS: Final = {6: (0, 1, 2, 3, 4, 5), 4: (0, 1, 3, 5), 3: (1, 3, 5)}
"""Which of a task's six learning rates are tried, by their number."""
_LOW_GRID: Final = (0, 1, 3)
"""Those of methods with stale or sparse gradients, which need lower rates."""
_DILOCO: Final = OuterSGD(lr=0.7, momentum=0.9, nesterov=True)
_ERROR_FEEDBACK: Final = tacit.ErrorFeedback()
Maker = Callable[[Any], Strategy[Any]]
Values = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and its six trials.

    values: of its parameter, all learning rates are tried with the first one. crew: the environment that runs it.
    """

    name: str
    strategy: Maker  # of tacit, by the value of the parameter; None where there is none
    parameter: str = ""
    values: Values = ()
    crew: str = "tacit"
    is_ours: bool = False
    has_low_rates: bool = False
    equals: str = ""

    @property
    def runner(self) -> str:
        """What the ranks of the crew call the method."""
        return "tacit" if self.is_ours else self.name

    def rates(self, task: Task) -> Sequence[float]:
        """Return the learning rates that are tried with the first value; the other trials have other values."""
        if len(task.rates) < TRIALS:  # a quick run
            return task.rates
        count = TRIALS - max(0, len(self.values) - 1)
        return [task.rates[number] for number in (_LOW_GRID if self.has_low_rates else _GRIDS[count])]

    def other_values(self, task: Task) -> Values:
        """Return the values that are tried with the best learning rate."""
        return self.values[1:] if len(task.rates) >= TRIALS else self.values[1:2]

    @property
    def first_value(self) -> float | None:
        return self.values[0] if self.values else None


def is_timed(strategy: Strategy[Any]) -> bool:
    """Return whether a run ends at a time, because its ranks do not wait for each other."""
    return isinstance(strategy, tacit.SwarmSGD)


def every_of(task: Task, strategy: Strategy[Any]) -> int:
    """Return the steps between two evaluations: whole periods, so that a model is judged when all ranks have it."""
    if isinstance(strategy, tacit.KBatchAsync):  # every_of counts updates, of several steps each
        return max(1, round(task.every / strategy.local_steps))
    period = period_of(strategy)
    return period * max(1, round(task.every / period))


def keeps_apart(strategy: Strategy[Any]) -> bool:
    """Return whether the ranks hold different models when one is evaluated; their mean is then evaluated."""
    if isinstance(strategy, tacit.LocalSGD):
        return strategy.overlap_steps > 0 or not isinstance(strategy.period, Every)
    return isinstance(strategy, tacit.SwarmSGD)


def _local(period: Any) -> Strategy[Any]:
    return tacit.LocalSGD(period=Every(int(period)))


def _diloco(period: Any) -> Strategy[Any]:
    return tacit.LocalSGD(period=Every(int(period)), outer=_DILOCO)


def _low_rank(rank: Any) -> Strategy[Any]:
    return tacit.CompressedGradient(compressor=tacit.LowRank(rank=int(rank)), feedback=_ERROR_FEEDBACK)


def _bf16(_: Any) -> Strategy[Any]:
    return tacit.CompressedGradient(compressor=tacit.BFloat16(), feedback=tacit.NoFeedback())


_PERIODS: Final = (16, 8, 32, 64)
DDP, ALL_REDUCE, POWERSGD, PLAN = "DDP", "tacit AllReduce", "DDP, PowerSGD hook", "tacit plan"
POST_LOCAL, LUPA = "torch PostLocalSGD", "tacit LocalSGD"
LOCAL_PEERS: Final = (POST_LOCAL, "accelerate LocalSGD", "torchft LocalSGD", "torchft DiLoCo", "hivemind averager")


def _local_peer(name: str, crew: str = "tacit") -> Method:
    return Method(
        name=name, strategy=_local, parameter="period", values=_PERIODS, crew=crew, equals="LocalSGD(Every(period))"
    )


_PEERS: Final = (
    Method(name=DDP, strategy=lambda _: tacit.AllReduce(), equals="AllReduce"),
    Method(name="DDP, bf16 hook", strategy=_bf16, equals="CompressedGradient(BFloat16)"),
    Method(
        name=POWERSGD,
        strategy=_low_rank,
        parameter="rank",
        values=(2, 1, 4),
        equals="CompressedGradient(LowRank, ErrorFeedback), but for two first steps without compression",
    ),
    _local_peer(POST_LOCAL),
    _local_peer("accelerate LocalSGD", "accelerate"),
    _local_peer("torchft LocalSGD", "torchft"),
    Method(
        name="torchft DiLoCo",
        strategy=_diloco,
        parameter="period",
        values=_PERIODS,
        crew="torchft",
        equals="LocalSGD(Every(period), outer=OuterSGD)",
    ),
    _local_peer("hivemind averager", "hivemind"),
)
_OURS: Final = (
    Method(name=ALL_REDUCE, strategy=lambda _: tacit.AllReduce()),
    Method(name=LUPA, strategy=_local, parameter="period", values=_PERIODS),
    Method(
        name="tacit LocalSGD, overlapped",
        strategy=lambda period: tacit.LocalSGD(period=Every(int(period)), overlap_steps=int(period) // 2),
        parameter="period",
        values=(16, 4, 8, 32),
    ),
    Method(
        name="tacit ADPSGD",
        strategy=lambda first: tacit.LocalSGD(
            period=tacit.VariancePeriod(initial=int(first), sampling_steps=4 * int(first))
        ),
        parameter="first period",
        values=(8, 4, 16, 32),
    ),
    Method(
        name="tacit LocalSGD, Top 2 %",
        strategy=lambda period: tacit.LocalSGD(period=Every(int(period)), compressor=tacit.TopK(fraction=0.02)),
        parameter="period",
        values=(16, 4, 8, 32),
    ),
    Method(
        name="tacit EF21",
        strategy=lambda share: tacit.CompressedGradient(compressor=tacit.TopK(fraction=share), feedback=tacit.EF21()),
        parameter="fraction",
        values=(0.02, 0.005, 0.01, 0.05),
        has_low_rates=True,
    ),
    Method(name="tacit DiLoCo", strategy=_diloco, parameter="period", values=_PERIODS),
    Method(
        name="tacit KSync",
        strategy=lambda k: tacit.KSync(k=int(k)),
        parameter="K",
        values=(3, 1, 2, 4),
        has_low_rates=True,
    ),
    Method(
        name="tacit KAsync",
        strategy=lambda k: tacit.KAsync(k=int(k)),
        parameter="K",
        values=(2, 1, 3, 4),
        has_low_rates=True,
    ),
    Method(
        name="tacit KBatchAsync, local steps",
        strategy=lambda steps: tacit.KBatchAsync(k=4, local_steps=int(steps)),
        parameter="local steps",
        values=(16, 8, 32, 64),
        has_low_rates=True,
    ),
    Method(
        name="tacit SwarmSGD",
        strategy=lambda steps: tacit.SwarmSGD(local_steps=int(steps)),
        parameter="local steps",
        values=(8, 2, 4, 16),
        has_low_rates=True,
    ),
    Method(
        name="tacit SwarmSGD, 8 bit",
        strategy=lambda steps: tacit.SwarmSGD(local_steps=int(steps), compressor=tacit.Lattice(bits=8)),
        parameter="local steps",
        values=(8, 2, 4, 16),
        has_low_rates=True,
    ),
)
METHODS: Final = {
    method.name: method for method in (*_PEERS, *(Method(**{**vars(one), "is_ours": True}) for one in _OURS))
}
"""All methods but the recommendation of a plan, which is chosen in another way."""
