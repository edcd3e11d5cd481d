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


TOP = tacit.TopK(fraction=0.2)

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
    # Top-k sends no zeros, so its bytes follow from gradients; the sizes of QSGD and Sign do not.
    Row(tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21()), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Plus(init="full")), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Momentum(eta=0.5)), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21HeavyBall(eta=0.5)), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Partial(probability=0.7)), depends_on_data=True),
    Row(
        tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Bidirectional(master=tacit.QSGD(bits=8))),
        depends_on_data=True,
    ),
    Row(tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback())),
    Row(tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback())),
    Row(tacit.LocalSGD(period=tacit.Every(5), compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback())),
    Row(tacit.LocalSGD(period=tacit.Every(5), compressor=TOP), depends_on_data=True),
    Row(
        tacit.LocalSGD(
            period=tacit.VariancePeriod(initial=3), compressor=TOP, feedback=tacit.EF21(), outer=tacit.OuterSGD(lr=0.9)
        ),
        depends_on_data=True,
    ),
]
