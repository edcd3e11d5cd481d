"""The conformance table: a new strategy joins with one row, and is tried in the simulator and on real processes."""

from __future__ import annotations

from dataclasses import dataclass

import tacit
from tacit.strategies import Strategy


@dataclass(frozen=True)
class Row:
    strategy: Strategy
    depends_on_data: bool = False  # whether what is said when follows from gradients: then timing-only runs differ
    survives_a_crash: bool = False

    def __str__(self) -> str:
        return str(self.strategy)


TABLE = [
    Row(tacit.AllReduce()),
    Row(tacit.LocalSGD(period=tacit.Every(5))),
    Row(tacit.LocalSGD(period=tacit.LinearPeriod(initial=2, rounds=5))),
    Row(tacit.LocalSGD(period=tacit.LossPeriod(initial=3)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.VariancePeriod(initial=3)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.AdaCommPeriod(initial=8)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.PeriodList([2, 7]))),
    Row(tacit.LocalSGD(period=tacit.OneShot())),
    Row(tacit.LocalSGD(period=tacit.Every(5), warmup_steps=7)),
    Row(tacit.LocalSGD(period=tacit.Every(6), overlap_steps=3)),
    Row(tacit.LocalSGD(period=tacit.VariancePeriod(initial=2), overlap_steps=4), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.Every(5), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True))),
    Row(tacit.LocalSGD(period=tacit.Every(5), outer=tacit.SlowMo(), overlap_steps=2)),
    Row(tacit.LocalSGD(period=tacit.Every(5), outer=tacit.OuterAdam(lr=0.05))),
]
