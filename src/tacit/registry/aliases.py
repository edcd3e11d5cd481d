"""Aliases: papers' names for strategies, such as ``DiLoCo`` for ``LocalSGD`` with an outer optimizer.

An alias is read where a strategy is expected, and stands for the call given with it. Arguments of that call may be
given: ``DiLoCo(period=Every(500))``. What prints, and what is saved, is always the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TOP: Final = "compressor=TopK(fraction=0.01)"
_BLOCKS: Final = "BlockTopK(block=4096, k=64)"
_EVERY: Final = "LocalSGD(period=Every(8))"
_DILOCO: Final = "LocalSGD(period=Every(50), outer=OuterSGD(lr=0.7, momentum=0.9, nesterov=True))"


@dataclass(frozen=True)
class Alias:
    """A name, the call that it stands for, and where it comes from."""

    name: str
    stands_for: str
    source: str


ALIASES: Final = (
    Alias("SyncSGD", "AllReduce()", "synchronous SGD"),
    Alias("LUPA-SGD", _EVERY, "Haddadpour et al., arXiv 1910.13598"),
    Alias("LUPA", _EVERY, "Haddadpour et al., arXiv 1910.13598"),
    Alias(
        "ADA-LUPA",
        "LocalSGD(period=LinearPeriod(initial=8, rounds=10))",
        "Haddadpour et al., arXiv 1910.13598; by the loss: LossPeriod()",
    ),
    Alias(
        "ADA-LUPA-SGD",
        "LocalSGD(period=LinearPeriod(initial=8, rounds=10))",
        "Haddadpour et al., arXiv 1910.13598; by the loss: LossPeriod()",
    ),
    Alias("CPSGD", _EVERY, "constant periods in Jiang & Agrawal, arXiv 2007.06134"),
    Alias(
        "ADPSGD",
        "LocalSGD(period=VariancePeriod(initial=4))",
        "adaptive periods, Jiang & Agrawal, arXiv 2007.06134; not AD-PSGD",
    ),
    Alias("AdaComm", "LocalSGD(period=AdaCommPeriod(initial=16))", "Wang & Joshi, arXiv 1810.08313"),
    Alias(
        "STL-SGD",
        "LocalSGD(period=RatePeriod(initial=4, power=1))",
        "Shen et al., arXiv 2006.06377; for workers with different data power=0.5",
    ),
    Alias("QSR", "LocalSGD(period=RatePeriod(initial=4, power=2))", "Gu et al., arXiv 2310.14423"),
    Alias("FedAvg", _EVERY, "McMahan et al., arXiv 1602.05629, with all clients in every round"),
    Alias(
        "FedAdam",
        "LocalSGD(period=Every(8), outer=OuterAdam(lr=0.01))",
        "Reddi et al., arXiv 2003.00295, with all clients in every round",
    ),
    Alias(
        "PostLocalSGD",
        "LocalSGD(period=Every(8), warmup_steps=100)",
        "Lin et al., arXiv 1808.07217; there half of all steps are the warm-up",
    ),
    Alias("SlowMo", "LocalSGD(period=Every(12), outer=SlowMo(momentum=0.5))", "Wang et al., arXiv 1910.00643"),
    Alias("DiLoCo", _DILOCO, "Douillard et al., arXiv 2311.08105; there Every(500) and AdamW"),
    Alias(
        "StreamingDiLoCo",
        "LocalSGD(period=Every(50), outer=OuterSGD(lr=0.7, momentum=0.9, nesterov=True), "
        "overlap_steps=5, mix=0.5, fragments=5)",
        "Douillard et al., arXiv 2501.18512, with DiLoCo's outer optimizer; there fragments are sets of layers",
    ),
    Alias(
        "HierarchicalLocalSGD",
        "Hierarchical(inner=AllReduce(), outer=LocalSGD(period=Every(8)))",
        "Lin et al., arXiv 1808.07217; one group per host",
    ),
    Alias(
        "H-SGD",
        "Hierarchical(inner=LocalSGD(period=Every(2)), outer=LocalSGD(period=Every(8)))",
        "Wang et al., arXiv 2010.12998; one group per host",
    ),
    Alias(
        "SparseLoCo",
        f"LocalSGD(period=Every(30), outer=OuterSGD(lr=1.0), compressor=Chain({_BLOCKS}, QSGD(bits=2, bucket=16)), "
        "feedback=ErrorFeedback(decay=0.95))",
        "Sarfi et al., arXiv 2508.15706; there AdamW, another rounding to 2 bits",
    ),
    Alias("OneShotAveraging", "LocalSGD(period=OneShot())", "one average, at the end"),
    Alias("EF21", f"CompressedGradient({_TOP}, feedback=EF21())", "Richtárik et al., arXiv 2106.05203"),
    Alias("EF21+", f"CompressedGradient({_TOP}, feedback=EF21Plus())", "Richtárik et al., arXiv 2106.05203"),
    Alias("EF21Plus", f"CompressedGradient({_TOP}, feedback=EF21Plus())", "Richtárik et al., arXiv 2106.05203"),
    Alias(
        "EF21-SGDM",
        f"CompressedGradient({_TOP}, feedback=EF21Momentum(eta=0.1))",
        "Fatkhullin et al., arXiv 2305.15155",
    ),
    Alias(
        "EF21-HB", f"CompressedGradient({_TOP}, feedback=EF21HeavyBall(eta=0.9))", "Fatkhullin et al., arXiv 2110.03294"
    ),
    Alias(
        "EF21-PP",
        f"CompressedGradient({_TOP}, feedback=EF21Partial(probability=0.5))",
        "Fatkhullin et al., arXiv 2110.03294",
    ),
    Alias(
        "EF21-BC",
        f"CompressedGradient({_TOP}, feedback=EF21Bidirectional(master=TopK(fraction=0.01)))",
        "Fatkhullin et al., arXiv 2110.03294",
    ),
    Alias(
        "EF-SGD",
        f"CompressedGradient({_TOP}, feedback=ErrorFeedback())",
        "classic error feedback, Stich et al., arXiv 1809.07599",
    ),
    Alias(
        "EF-SignSGD",
        "CompressedGradient(compressor=Sign(), feedback=ErrorFeedback())",
        "Karimireddy et al., arXiv 1901.09847",
    ),
    Alias(
        "QSGD",
        "CompressedGradient(compressor=QSGD(bits=8), feedback=NoFeedback())",
        "Alistarh et al., arXiv 1610.02132",
    ),
    Alias(
        "PowerSGD",
        "CompressedGradient(compressor=LowRank(rank=2), feedback=ErrorFeedback())",
        "Vogels et al., arXiv 1905.13727",
    ),
    Alias("ASGD", "KAsync(k=1)", "asynchronous SGD with a server"),
    Alias(
        "FedBuff",
        "KBatchAsync(k=4, rate=InverseStaleness(power=0.5), local_steps=8)",
        "Nguyen et al., arXiv 2106.06639; there k=10",
    ),
    Alias(
        "AsyncDiLoCo",
        "KBatchAsync(k=1, local_steps=50, outer=DelayedNesterov(delay=4))",
        "asynchronous local SGD, Liu et al., arXiv 2401.09135; delay is the number of workers",
    ),
    Alias("Ringmaster", "KAsync(k=1, drop_staleness=8)", "Maranjyan et al., arXiv 2501.16168; drop_staleness is R"),
    Alias("AD-PSGD", "AsynchronousDPSGD(topology=Complete())", "Lian et al., arXiv 1710.06952; not ADPSGD"),
    Alias(
        "CHOCO-SGD",
        "CHOCO(topology=Ring(), compressor=TopK(fraction=0.1), gamma=0.2)",
        "Koloskova et al., arXiv 1902.00340",
    ),
)


def alias_of(name: str) -> Alias | None:
    """Return the alias called ``name``, however it is cased or hyphenated; a hyphen matters only between AD-PSGD and
    ADPSGD.
    """
    for simple in (_with_marks, _without_marks):
        for alias in ALIASES:
            if simple(alias.name) == simple(name):
                return alias
    return None


def _with_marks(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _without_marks(name: str) -> str:
    return _with_marks(name).replace("_", "")
