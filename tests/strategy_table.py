"""The conformance table: a new strategy joins with one row, and is tried in the simulator and on real processes."""

from __future__ import annotations

import tacit
from tacit.testing import Row

TOP = tacit.TopK(fraction=0.2)
TIMED = {"is_asynchronous": True}  # times differ between the worlds, and periods with them
ALONE = {"survives_a_crash": True, "is_asynchronous": True}  # nobody waits for anybody

TABLE = [
    Row(tacit.AllReduce()),
    Row(tacit.DDP(backward=0.5)),
    Row(tacit.LocalSGD(period=tacit.Every(5))),
    Row(tacit.LocalSGD(period=tacit.LinearPeriod(initial=2, rounds=5))),
    Row(tacit.LocalSGD(period=tacit.LossPeriod(initial=3)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.VariancePeriod(initial=3)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.AdaCommPeriod(initial=8)), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.RatePeriod(initial=3))),
    Row(tacit.LocalSGD(period=tacit.PacePeriod(communication=0.005)), **TIMED),
    Row(tacit.LocalSGD(period=tacit.PacePeriod(communication=0.005), overlap_steps=1), **TIMED),
    Row(tacit.LocalSGD(period=tacit.PacePeriod(), compressor=tacit.QSGD(bits=8)), **TIMED),
    Row(tacit.LocalSGD(period=tacit.PeriodList([2, 7]))),
    Row(tacit.LocalSGD(period=tacit.OneShot())),
    Row(tacit.LocalSGD(period=tacit.Every(5), warmup_steps=7)),
    Row(tacit.LocalSGD(period=tacit.Every(6), overlap_steps=3)),
    Row(tacit.LocalSGD(period=tacit.Every(6), fragments=3)),
    Row(
        tacit.LocalSGD(
            period=tacit.LinearPeriod(initial=3, rounds=4),
            fragments=2,
            overlap_steps=2,
            mix=0.5,
            outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True),
        )
    ),
    Row(tacit.LocalSGD(period=tacit.VariancePeriod(initial=2), overlap_steps=4), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.AdaCommPeriod(initial=5), overlap_steps=3), depends_on_data=True),
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
        tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Bidirectional(master=TOP)),
        depends_on_data=True,
    ),
    Row(tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback())),
    Row(tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback())),
    Row(tacit.CompressedGradient(compressor=TOP, aggregate="scatter"), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=TOP, weights="equal"), depends_on_data=True),
    Row(tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback(), aggregate="scatter")),
    Row(
        tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21Bidirectional(master=TOP), aggregate="scatter"),
        depends_on_data=True,
    ),
    Row(tacit.LocalSGD(period=tacit.Every(5), compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback())),
    Row(tacit.LocalSGD(period=tacit.Every(5), compressor=TOP), depends_on_data=True),
    Row(tacit.LocalSGD(period=tacit.LossPeriod(initial=3), compressor=TOP, warmup_steps=3), depends_on_data=True),
    Row(
        tacit.LocalSGD(period=tacit.VariancePeriod(initial=3), compressor=tacit.Sign(), aggregate="scatter"),
        depends_on_data=True,
    ),
    Row(
        tacit.LocalSGD(
            period=tacit.VariancePeriod(initial=3), compressor=TOP, feedback=tacit.EF21(), outer=tacit.OuterSGD(lr=0.9)
        ),
        depends_on_data=True,
    ),
    Row(tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(5)), groups=2), fewest_workers=2),
    Row(
        tacit.Hierarchical(
            inner=tacit.LocalSGD(period=tacit.Every(2)),
            outer=tacit.LocalSGD(period=tacit.VariancePeriod(initial=3), outer=tacit.SlowMo(), warmup_steps=3),
            groups=2,
        ),
        depends_on_data=True,
        fewest_workers=2,
    ),
    Row(
        tacit.Hierarchical(
            inner=tacit.CompressedGradient(compressor=TOP),
            outer=tacit.LocalSGD(period=tacit.LossPeriod(initial=3), compressor=TOP),
            groups=2,
        ),
        depends_on_data=True,
        fewest_workers=2,
    ),
    Row(  # SparseLoCo
        tacit.LocalSGD(
            period=tacit.Every(5),
            outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True),
            compressor=tacit.Chain(tacit.BlockTopK(block=16, k=2), tacit.QSGD(bits=2, bucket=16)),
            feedback=tacit.ErrorFeedback(decay=0.95),
        )
    ),
    Row(tacit.SwarmSGD(local_steps=4), **ALONE),
    Row(tacit.SwarmSGD(local_steps=tacit.Geometric(mean=3), topology=tacit.Ring()), **ALONE),
    # Sizes of lattice points do not follow from models, but what overflows and is said again does.
    Row(tacit.SwarmSGD(local_steps=3, compressor=tacit.Lattice(bits=8)), depends_on_data=True, **ALONE),
    Row(tacit.SwarmSGD(local_steps=3, compressor=tacit.Lattice(bits=8), two_stage=True), depends_on_data=True, **ALONE),
    Row(tacit.SwarmSGD(local_steps=4, blocking=True), survives_a_crash=True),
    Row(tacit.SwarmSGD(local_steps=tacit.Geometric(mean=3), blocking=True), survives_a_crash=True),
    Row(
        tacit.SwarmSGD(local_steps=4, blocking=True, compressor=tacit.Lattice(bits=8)),
        depends_on_data=True,
        survives_a_crash=True,
    ),
    Row(tacit.PullSwarm(local_steps=4), **ALONE),
    Row(tacit.DPSGD(topology=tacit.Ring())),
    Row(tacit.SGP(topology=tacit.OnePeer())),
    Row(tacit.CHOCO(topology=tacit.Ring(), compressor=tacit.QSGD(bits=8), gamma=0.8)),
    Row(tacit.CHOCO(topology=tacit.Complete(), compressor=TOP, gamma=0.4), depends_on_data=True),
    Row(tacit.AsynchronousDPSGD(topology=tacit.Ring()), **ALONE),
    Row(tacit.KSync(k=3), fewest_workers=3, **ALONE),
    Row(tacit.KBatchSync(k=3), **ALONE),
    Row(tacit.KAsync(k=2), fewest_workers=2, **ALONE),
    Row(tacit.KBatchAsync(k=3), **ALONE),
    Row(tacit.KAsync(k=1, rate=tacit.InverseStaleness(), maximum_staleness=3), **ALONE),
    Row(tacit.KAsync(k=2, rate=tacit.RescaledRate()), fewest_workers=2, **ALONE),
    Row(tacit.KAsync(k=1, drop_staleness=2), **ALONE),
    Row(tacit.KBatchAsync(k=2, local_steps=3, rate=tacit.InverseStaleness(power=0.5)), **ALONE),
    Row(tacit.KBatchAsync(k=1, local_steps=3, outer=tacit.DelayedNesterov(delay=4)), **ALONE),
    Row(tacit.Ringleader(), **ALONE),
    Row(tacit.Ringleader(compressor=TOP, model_compressor=TOP), depends_on_data=True, **ALONE),
    Row(tacit.KBatchAsync(k=2, compressor=TOP, model_compressor=TOP), depends_on_data=True, **ALONE),
    Row(
        tacit.KSync(k=2, compressor=TOP, model_compressor=tacit.QSGD(bits=8)),
        depends_on_data=True,
        fewest_workers=2,
        **ALONE,
    ),
    Row(tacit.AdaSync(tacit.KAsync(k=1), every=5), depends_on_data=True, fewest_workers=2, **ALONE),
    Row(tacit.AdaSync(tacit.KBatchAsync(k=1), every_s=0.01), depends_on_data=True, **ALONE),
]
