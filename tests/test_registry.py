"""The notation: everything that has a name can be written down and read back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as draw

import tacit
from tacit import (
    CHOCO,
    DDP,
    DPSGD,
    EF21,
    QSGD,
    SGP,
    AdaCommPeriod,
    AdaSync,
    AllReduce,
    AsynchronousDPSGD,
    BFloat16,
    BlockTopK,
    Calibrated,
    Chain,
    Cluster,
    Complete,
    CompressedGradient,
    Constant,
    Cosine,
    Crash,
    DelayedNesterov,
    Dense,
    EF21Bidirectional,
    EF21HeavyBall,
    EF21Momentum,
    EF21Partial,
    EF21Plus,
    EF21Weighted,
    ErrorFeedback,
    Every,
    Exponential,
    ExponentialGraph,
    Geometric,
    Gloo,
    Graph,
    Hierarchical,
    Hypercube,
    HyperExponential,
    InverseStaleness,
    InverseTime,
    Join,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KSync,
    Lattice,
    Layerwise,
    LinearPeriod,
    Link,
    LocalSGD,
    LogNormal,
    LossPeriod,
    LowRank,
    Measured,
    MessageLoss,
    Nic,
    NoFeedback,
    OnePeer,
    OneShot,
    OuterAdam,
    OuterSGD,
    PacePeriod,
    Pareto,
    Partition,
    Pause,
    PeriodList,
    PullSwarm,
    RandomK,
    RandomRegular,
    RatePeriod,
    Recorded,
    RescaledRate,
    Ring,
    Ringleader,
    ShiftedExponential,
    Sign,
    Slow,
    SlowMo,
    SlowSpells,
    StalenessRate,
    Star,
    StepDecay,
    SwarmSGD,
    TopK,
    Torus,
    VariancePeriod,
    workloads,
)
from tacit.registry import ALIASES, FAMILIES, Alias, find, parse

EXAMPLES: list[Any] = [
    AllReduce(),
    DDP(backward=0.4),
    AdaSync(KAsync(k=1)),
    KAsync(k=3, rate=StalenessRate(c=0.005)),
    KBatchAsync(k=2, rate=InverseStaleness()),
    KAsync(k=1, rate=RescaledRate()),
    Ringleader(),
    KBatchSync(k=2),
    KSync(k=2, shards=2),
    StalenessRate(c=0.1, maximum=0.2),
    InverseStaleness(),
    RescaledRate(),
    SwarmSGD(local_steps=Geometric(mean=3), topology=Ring(), compressor=Lattice(bits=8)),
    PullSwarm(local_steps=2),
    Geometric(mean=2.5),
    DPSGD(topology=Torus(rows=2)),
    AsynchronousDPSGD(topology=Ring()),
    SGP(topology=ExponentialGraph()),
    CHOCO(compressor=QSGD(bits=4), gamma=0.5),
    LocalSGD(period=VariancePeriod(initial=2, sampling_steps=20), outer=SlowMo(momentum=0.7), warmup_steps=5),
    CompressedGradient(compressor=TopK(k=3), feedback=EF21Plus(init="full")),
    LocalSGD(period=Every(4), compressor=TopK(fraction=0.1), feedback=NoFeedback()),
    LocalSGD(period=Every(4), fragments=2, overlap_steps=1, mix=0.5),
    Hierarchical(outer=LocalSGD(period=Every(4)), groups=[[0, 2], [1, 3]]),
    EF21(init="full"),
    EF21Bidirectional(master=TopK(k=2)),
    EF21HeavyBall(eta=0.5),
    EF21Momentum(eta=0.2),
    EF21Partial(probability=0.25),
    EF21Plus(),
    EF21Weighted(weights=[1.0, 2.5]),
    ErrorFeedback(),
    NoFeedback(),
    Every(8),
    OneShot(),
    PeriodList([4, 8, 16]),
    PeriodList((3,)),
    LinearPeriod(initial=91, rounds=3),
    LossPeriod(f_star=-1.5),
    AdaCommPeriod(initial=32),
    VariancePeriod(lower=0.5),
    RatePeriod(initial=2, power=0.5, maximum=128),
    PacePeriod(communication=0.02),
    Dense(),
    BFloat16(),
    TopK(k=1),
    Layerwise(TopK(fraction=0.1), exempt_below=10),
    RandomK(fraction=0.25, scaled=True),
    BlockTopK(block=64, k=2),
    QSGD(bits=4),
    Sign(),
    LowRank(rank=4),
    Lattice(bits=6, side=0.01),
    Chain(TopK(fraction=0.01), QSGD(bits=8, bucket=64)),
    Complete(),
    ExponentialGraph(),
    Graph([(0, 1), (1, 2)]),
    Graph(((0, 1), (1, 0)), directed=True),
    Hypercube(),
    OnePeer(),
    RandomRegular(degree=3, seed=1),
    Ring(),
    Star(),
    Torus(rows=2),
    OuterSGD(lr=0.7, momentum=0.9, nesterov=True),
    DelayedNesterov(delay=8, activation=0.1),
    OuterAdam(eps=1e-8),
    SlowMo(),
    StepDecay(at=(0.3,)),
    Cosine(warmup_steps=10),
    InverseTime(offset=12.0),
    Constant(mean_s=1e-05),
    Exponential(mean_s=1e300),
    ShiftedExponential(shift_s=0.5),
    Pareto(shape=1.5),
    LogNormal(sigma=0),
    HyperExponential(means_s=(1.0, 2.0), weights=(0.25, 0.75)),
    Recorded(times_s=[0.1, 0.2]),
    Recorded(times_s="step-times.txt"),
    SlowSpells(compute=Constant(), factor=2.0),
    Crash(rank=3, at_s=2.0),
    Join(rank=2, at_s=1.5),
    Pause(rank=0, at_s=0.0, for_s=1.0),
    Slow(rank=1, factor=4.0),
    Slow(rank=1, factor=4.0, for_s=2.5),
    Partition(ranks=[0, 1], at_s=1.0),
    MessageLoss(probability=0.01),
    Link(latency_s=0.5),
    Nic(out_bytes_per_s=1e6, in_bytes_per_s=2e6),
    Cluster(workers=4, hosts=2, host_latency_s=1e-5, host_bandwidth_bytes_per_s=5e9, nics={0: Nic(in_bytes_per_s=1e6)}),
    Cluster(workers=4, hosts=[0, 0, 1, 2], header_overhead=0.047),
    Cluster(workers=2, compute=[Constant(mean_s=0.1), Recorded(times_s=[0.1, 0.2])], cores=4),
    Cluster(workers=2, compute={0: Constant(mean_s=0.1), 1: Constant(mean_s=0.2)}, cores=1, communication_cores=0.5),
    Gloo(software_s_per_byte=1e-9),
    Calibrated(gloo=Gloo(software_s_per_byte=0.0), all_reduce={1000: 1.5}),
    Measured({1000: 0.001, 10**6: 0.5}, broadcast={1e3: 0.25}),
    Cluster(workers=4, collectives="gloo"),
    Cluster(workers=4, collectives=Measured({1000: 0.001})),
    Cluster(workers=4, speed={3: 0.33}, links={(0, 3): Link(latency_s=0.1)}, faults=[Crash(rank=1, at_s=1.0)]),
    SwarmSGD(local_steps=Geometric(mean=2.5), topology=Ring(), compressor=Lattice(bits=4), two_stage=True),
    PullSwarm(local_steps=2),
    Geometric(mean=3),
    workloads.quadratic(dimension=5, noise=0),
    workloads.logistic("a9a.bz2", regularizer="nonconvex", dtype=torch.float64),
    workloads.least_squares("a-file.txt", batch_size=4),
    workloads.digits(model="softmax", split="sorted"),
    workloads.mnist("data", batch_size=64),
    workloads.cifar10("data", model="cnn"),
    workloads.text("shakespeare.txt.gz", layers=1),
]
TAKE_TENSORS = {"custom", "images"}  # only from Python


@pytest.mark.parametrize("thing", EXAMPLES, ids=str)
def test_what_prints_can_be_read_back(thing: object) -> None:
    assert parse(str(thing)) == thing


def test_every_name_has_an_example() -> None:
    """The test above covers whatever is registered, also what comes later."""
    shown = {str(thing).partition("(")[0] for thing in EXAMPLES}
    assert {named.name for family in FAMILIES.values() for named in family} - TAKE_TENSORS == shown


periods = draw.one_of(
    draw.builds(Every, draw.integers(1)),
    draw.builds(PeriodList, draw.lists(draw.integers(1), min_size=1)),
    draw.builds(LossPeriod, initial=draw.integers(1), f_star=draw.floats(allow_nan=False)),
)
outers = draw.none() | draw.builds(OuterSGD, lr=draw.floats(min_value=0, exclude_min=True))


@given(draw.builds(LocalSGD, period=periods, outer=outers, warmup_steps=draw.integers(0)))
def test_drawn_strategies_can_be_read_back(strategy: LocalSGD) -> None:
    assert parse(str(strategy), "strategies") == strategy


@pytest.mark.parametrize("name", ["LocalSGD", "localsgd", "local-sgd", "LOCAL_SGD", "local-sgd()", " LocalSGD( ) "])
def test_names_are_found_however_they_are_typed(name: str) -> None:
    assert parse(name) == LocalSGD()


def test_dashes_in_texts_and_numbers_stay() -> None:
    assert parse('least-squares("my-data-file.txt")') == workloads.least_squares("my-data-file.txt")
    assert parse("Constant(mean_s=1e-3)") == Constant(mean_s=1e-3)


def test_bare_names_are_calls_also_inside() -> None:
    assert parse("LocalSGD(period=one-shot, outer=SlowMo)") == LocalSGD(period=OneShot(), outer=SlowMo())


def test_dtypes_are_written_either_way() -> None:
    assert parse('logistic("x", dtype="float64")') == parse('logistic("x", dtype=torch.float64)')


def test_no_name_stands_for_two_things() -> None:
    names = [named.name.lower() for family in FAMILIES.values() for named in family]
    assert len(names) == len(set(names))


def test_every_name_has_a_meaning() -> None:
    assert [named.name for family in FAMILIES.values() for named in family if not named.meaning] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LocalSDG", r"unknown name 'LocalSDG'; did you mean 'LocalSGD'\?"),
        (
            "LocalSGD(perid=Every(8))",
            r"LocalSGD has no argument 'perid'; did you mean 'period'\? Its arguments are period=",
        ),
        ("OneShot(period=1)", "OneShot has no argument 'period'. It takes none."),
        ("LocalSGD(period=Every(0))", r"LocalSGD\(period=Every\(0\)\): period=0 must be .* use AllReduce\(\)"),
        ("LocalSGD(period=8)", r"period=8 must be a period; for a fixed number of steps write Every\(8\)"),
        (
            "LocalSGD(Every(8))",
            r"LocalSGD takes no argument without its name; write LocalSGD\(period=Every\(8\)\)\. Its arguments are",
        ),
        (
            "KAsync(2)",
            r"KAsync takes no argument without its name; write KAsync\(k=2\)\. Its arguments are k \(required\), ",
        ),
        ("KAsync(2, k=3)", r"write KAsync\(rate=2, k=3\)"),
        ("Complete(1)", r"Complete takes no argument without its name; write none\."),
        ("DiLoC", r"unknown name 'DiLoC'; did you mean 'DiLoCo'\?"),
        (
            "DiLoCo(lr=1)",
            r"LocalSGD has no argument 'lr'.* \(DiLoCo stands for LocalSGD\(period=Every\(50\), outer=OuterSGD",
        ),
        ("DiLoCo(Every(9))", r"write LocalSGD\(.*\(DiLoCo stands for "),
        (
            "LocalSGD(outer=Every(8))",
            r"outer=Every\(8\) of LocalSGD must be one of DelayedNesterov, OuterAdam, OuterSGD, SlowMo or None",
        ),
        ("LinearPeriod(initial='x')", "initial=x must be a whole number"),
        ("Cosine(final='x')", 'final="x" of Cosine must be a number'),
        ("HyperExponential(means_s=3)", "means_s=3 of HyperExponential must be a list"),
        ("Crash(rank=1)", r"Crash needs at_s; its arguments are rank \(required\), at_s \(required\)"),
        ("Every(1, 2)", "Every takes only n without its name"),
        ("Every(1 + 1)", r"1 \+ 1 cannot be used here"),
        ("Every(n)", "unknown name 'n'"),
        ("Every(**{'n': 1})", r"\*\* cannot be used here"),
        ("Every(8", "cannot be read"),
        ("8", "is not a name or a call"),
        ("", "cannot be read"),
        ("os.system('true')", "os.system is not a name tacit knows"),
        ("Every(__import__('os'))", "unknown name '__import__'; `tacit list` shows them all"),
        ("Every(torch.load)", "torch.load cannot be used here"),
        ("Every([x for x in (1,)])", "cannot be used here"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_name_of_another_family_is_refused() -> None:
    with pytest.raises(
        ValueError, match="digits is one of the workloads, not of the strategies; those are .*AllReduce, "
    ):
        parse("digits", "strategies")


def test_arguments_show_their_defaults() -> None:
    assert [str(argument) for argument in find("slow").arguments] == ["rank", "factor", "at_s=0.0", "for_s=inf"]


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.name)
def test_a_papers_name_is_the_call_it_stands_for(alias: Alias) -> None:
    made = parse(alias.name, "strategies")
    assert isinstance(made, tacit.Strategy)
    assert str(made) == str(parse(alias.stands_for))
    assert parse(alias.name.upper().replace("-", "_"), "strategies") == made


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("ADPSGD", tacit.LocalSGD(period=tacit.VariancePeriod(initial=4))),
        ("AD-PSGD", tacit.AsynchronousDPSGD()),
        ("post-local SGD", tacit.LocalSGD(period=tacit.Every(8), warmup_steps=100)),
        (
            "DiLoCo(period=Every(500))",
            tacit.LocalSGD(period=tacit.Every(500), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)),
        ),
        ("asgd(maximum_staleness=3)", tacit.KAsync(k=1, maximum_staleness=3)),
        ("EF21()", tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21())),
        ("AdaSync(ASGD)", tacit.AdaSync(tacit.KAsync(k=1))),
    ],
)
def test_papers_names_take_the_arguments_of_their_call(text: str, strategy: tacit.Strategy) -> None:
    assert parse(text, "strategies") == strategy


def test_a_name_that_is_taken_is_an_alias_only_where_a_strategy_is_expected() -> None:
    assert parse("EF21") == tacit.EF21()
    assert parse("LocalSGD(outer=SlowMo())") == tacit.LocalSGD(outer=tacit.SlowMo())
    assert parse("SlowMo", "strategies") == tacit.LocalSGD(period=tacit.Every(12), outer=tacit.SlowMo())
    assert parse("DiLoCo") == parse("DiLoCo", "strategies")
    with pytest.raises(ValueError, match="unknown period 'DiLoCo'"):
        parse("DiLoCo", "periods")
