"""Compressed words gathered by everybody, or summed range by range: the same mean, and what each form costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import nn

import tacit
from tacit import workloads
from tacit.compression import QSGD, BlockTopK, Compressor, Dense, DenseVector, LowRank, RandomK, Sign, TopK
from tacit.compression.feedback import SummableFeedback, Update, UpdateWithStatistics
from tacit.core.messages import TensorMessage
from tacit.core.randomness import Streams
from tacit.errors import BadMessage
from tests.strategies.ranks import Ranks, Scattered

EXACT: list[SummableFeedback] = [
    tacit.ErrorFeedback(),
    tacit.EF21(),
    tacit.EF21(init="full"),
    tacit.EF21Momentum(eta=0.3),
    tacit.EF21HeavyBall(eta=0.5),
    tacit.EF21Partial(probability=0.5),
    tacit.EF21Weighted(weights=[1.0, 2.0, 3.0]),
]


def run_of(
    form: str, compressor: Compressor, feedback: SummableFeedback, workers: int, steps: int = 3, **rest
) -> tacit.Run:
    strategy = tacit.CompressedGradient(compressor=compressor, feedback=feedback, aggregate=form)
    workload = rest.pop("workload", workloads.quadratic(dimension=30, heterogeneity=0.5))
    return tacit.simulate(workload, strategy, cluster=tacit.Cluster(workers=workers), steps=steps, **rest)


def bytes_of(run: tacit.Run) -> float:
    """What a rank sends in a step."""
    return run.summary()["bytes_sent"] / run.steps / run.workers


# The same mean.


@pytest.mark.slow
@given(
    feedback=draw.sampled_from([*EXACT, tacit.NoFeedback()]),
    seed=draw.integers(0, 99),
    compressor=draw.sampled_from(
        [TopK(k=7), RandomK(k=9), RandomK(k=9, scaled=True), BlockTopK(block=8), QSGD(bits=3, bucket=8), Sign()]
    ),
    dtype=draw.sampled_from([torch.float32, torch.float64]),
    weights=draw.lists(draw.sampled_from([0.0, 2.0**-60, 0.5, 1.0, 3.0]), min_size=12, max_size=12),
)
@settings(deadline=None, max_examples=80)
def test_scattered_words_mean_bit_for_bit_what_gathered_words_do(
    feedback: SummableFeedback, seed: int, compressor: Compressor, dtype: torch.dtype, weights: list[float]
):
    """Every feedback whose replies are exact, with ranks that skip, leave and come back."""
    if isinstance(feedback, tacit.NoFeedback) and compressor.is_unbiased:
        compressor = TopK(k=7)  # an unbiased quantizer's replies are rounded
    gathered, scattered = (kind(feedback, compressor, 3, 61, seed, dtype) for kind in (Ranks, Scattered))
    draws = torch.Generator().manual_seed(seed)
    for step in range(4):
        vectors = list(torch.randn(3, 61, generator=draws, dtype=torch.float64).to(dtype))
        now = weights[3 * step : 3 * step + 3]
        assert torch.equal(gathered.mean(vectors, now, rate=0.1), scattered.mean(vectors, now, rate=0.1))
    for one, other in zip(gathered.states, scattered.states, strict=True):
        assert one.weights == other.weights
        for name, value in {**one.own, **one.shared}.items():
            assert torch.equal(value, {**other.own, **other.shared}[name]), name


@pytest.mark.parametrize("feedback", EXACT, ids=str)
def test_runs_do_not_depend_on_the_form(feedback: SummableFeedback):
    gathered, scattered = (run_of(form, TopK(k=4), feedback, 3, steps=12, lr=0.05) for form in ("gather", "scatter"))
    assert torch.equal(gathered.parameters, scattered.parameters)
    assert scattered.summary()["rounds"] == 12  # two exchanges are one round
    kinds = [event.label for event in scattered.trace.of("exchange") if event.rank == 0]
    assert kinds == ["all-to-all", "all-gather"] * 12


def test_a_quantizer_rounds_the_mean_twice_and_stays_unbiased():
    """The mean of many draws is the mean of the vectors; the spread is within the bound that ``NoFeedback`` names."""
    compressor, draws = QSGD(bits=4, bucket=16), 250
    vectors = list(torch.randn(3, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    scattered, gathered = Scattered(tacit.NoFeedback(), compressor, 3, 64), Ranks(tacit.NoFeedback(), compressor, 3, 64)
    mean = sum(vectors) / 3
    errors = torch.stack([scattered.mean(vectors) - mean for _ in range(draws)])
    deviation = errors.std(0)
    assert (errors.mean(0).abs() <= 5 * deviation / draws**0.5 + 1e-4).all()
    omega, squares = compressor.variance(64), sum(float(v.square().sum()) for v in vectors) / 3
    variance = float(errors.square().sum(1).mean())
    assert variance <= omega * float(mean.square().sum()) + (1 + omega) * omega / 3 * squares
    once = torch.stack([gathered.mean(vectors) - mean for _ in range(100)])
    assert variance > 1.3 * float(once.square().sum(1).mean())  # a second rounding is not free


@pytest.mark.slow
def test_masters_of_ranges_converge_and_keep_their_sums():
    """EF21-BC with a master for every range: the optimum of all, and the same mean for another number of workers."""
    feedback = tacit.EF21Bidirectional(master=TopK(k=1))
    ranks, x = Scattered(feedback, TopK(k=2), 3, 12), torch.zeros(12, dtype=torch.float64)
    minima = list(torch.randn(3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    for _ in range(600):
        x = x - 0.05 * ranks.mean([x - minimum for minimum in minima])
    torch.testing.assert_close(x, sum(minima) / 3, rtol=0, atol=1e-8)
    estimates = sum(state.own["estimate"] for state in ranks.states)
    for rank, state in enumerate(ranks.states):
        part = slice(*ranks.bounds[rank : rank + 2])
        torch.testing.assert_close(state.shared["sum"][part], estimates[part], rtol=0, atol=1e-12)
    merged = feedback.merged(ranks.states, 0, 5)
    torch.testing.assert_close(merged.shared["sum"] / 5, estimates / 3, rtol=0, atol=1e-12)


# What it costs.


def test_a_quantizers_bytes_do_not_grow_with_the_number_of_workers():
    workload = workloads.quadratic(dimension=65_536)
    few, many = (
        bytes_of(run_of("auto", QSGD(bits=8), tacit.NoFeedback(), workers, 1, workload=workload, timing_only=True))
        for workers in (4, 32)
    )
    words = QSGD(bits=8).compress(torch.ones(65_536, dtype=torch.float64), np.random.default_rng(0)).size_bytes
    assert few == pytest.approx(2 * 3 / 4 * words, rel=0.02)
    assert many == pytest.approx(2 * 31 / 32 * words, rel=0.08)  # 62 headers
    gathered = run_of("gather", QSGD(bits=8), tacit.NoFeedback(), 32, 1, workload=workload, timing_only=True)
    assert bytes_of(gathered) > 31 * words


def test_sparse_words_are_merged_on_their_way_back():
    """Never more numbers than went in or than there are; and with masters of ranges less than that."""
    draws = torch.Generator().manual_seed(0)
    vectors = list(torch.randn(8, 400, generator=draws, dtype=torch.float64))
    for k in (5, 100):
        ranks = Scattered(tacit.EF21(), TopK(k=k), 8, 400)
        ranks.mean(vectors)
        entries = sum(int((reply.dense() != 0).sum()) for reply in ranks.replies)
        assert k <= entries <= min(8 * k, 400)
    ranks = Scattered(tacit.EF21Bidirectional(master=TopK(fraction=0.01)), TopK(k=100), 8, 400)
    ranks.mean(vectors)
    assert sum(reply.count for reply in ranks.replies) == 8  # one of every fifty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compressor", "feedback"),
    [
        (TopK(fraction=0.01), tacit.EF21()),
        (TopK(fraction=0.2), tacit.EF21()),
        (QSGD(), tacit.NoFeedback()),
        (QSGD(), tacit.EF21()),
        (Sign(), tacit.ErrorFeedback()),
        (Dense(), tacit.NoFeedback()),
        (TopK(fraction=0.01), tacit.EF21Bidirectional(master=TopK(fraction=0.01))),
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [2, 12])
def test_auto_is_the_form_that_sends_less(compressor: Compressor, feedback: SummableFeedback, workers: int):
    workload = workloads.quadratic(dimension=4000, heterogeneity=1.0)
    sent = {
        form: bytes_of(run_of(form, compressor, feedback, workers, 2, workload=workload))
        for form in ("gather", "scatter", "auto")
    }
    assert sent["auto"] in (sent["gather"], sent["scatter"])
    # The rule assumes independent coordinates; ranks with similar data choose similar ones, and their sums are smaller.
    assert sent["auto"] <= 1.2 * min(sent["gather"], sent["scatter"])


# What must not get in.


class Liar(tacit.CompressedGradient):
    """On rank 1 the last step's parts, or reply, are replaced."""

    lie: object = None

    def before_step(self, worker, state):
        if worker.rank != 1:
            return super().before_step(worker, state)
        network = worker.network

        class Lying:
            def __getattr__(self, name):
                return getattr(network, name)

            def all_to_all(self, messages, group=None):
                return network.all_to_all([Liar.lie(message) for message in messages])

            def all_gather(self, message, group=None, continues=False):
                return network.all_gather(Liar.lie(message), continues=continues)

        worker.network = Lying()
        try:
            return super().before_step(worker, state)
        finally:
            worker.network = network


def _other_length(message):
    wrong = TopK(k=1).compress(torch.ones(5, dtype=torch.float64), np.random.default_rng(0))
    return message.with_body(wrong) if isinstance(message, Update) else wrong


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (_other_length, "of 5 numbers came where 10 were expected"),
        (lambda message: TensorMessage(torch.zeros(3)), "received TensorMessage, expected Update"),
        (
            lambda m: dataclasses.replace(m, body=b"\0\1\2") if isinstance(m, Update) else m,
            "body is a bytes and must be a compressed vector",
        ),
        (
            lambda m: dataclasses.replace(m, body=TensorMessage(torch.zeros(3))) if isinstance(m, Update) else m,
            "body is a TensorMessage",
        ),
        (lambda m: m if isinstance(m, Update) else _other_length(m), "of 5 numbers came where 10 were expected"),
        (lambda m: m if isinstance(m, Update) else Update(1.0), "received Update, expected Compressed"),
    ],
)
def test_hostile_parts_and_replies_are_refused(lie, reason: str):
    Liar.lie = staticmethod(lie)
    with pytest.raises(BadMessage, match=reason):
        tacit.simulate(
            workloads.quadratic(dimension=30),
            Liar(compressor=TopK(k=2), aggregate="scatter"),
            cluster=tacit.Cluster(workers=3),
            steps=1,
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tacit.CompressedGradient(aggregate="scater"), "aggregate='scater' is unknown; did you mean 'scatter'"),
        (
            lambda: tacit.CompressedGradient(compressor=LowRank(), aggregate="scatter"),
            'needs messages that split by coordinates.*use "gather"',
        ),
        (
            lambda: tacit.CompressedGradient(feedback=tacit.EF21Plus(), aggregate="scatter"),
            'needs each message; use "gather"',
        ),
        (
            lambda: tacit.CompressedGradient(feedback=tacit.EF21Bidirectional(master=LowRank()), aggregate="scatter"),
            "needs messages that split by coordinates",
        ),
        (lambda: tacit.LocalSGD(aggregate="scatter"), 'aggregate="scatter" needs a compressor'),
    ],
)
def test_forms_that_cannot_be_are_refused_with_a_way_out(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_compressor_of_ones_own_is_gathered():
    @dataclasses.dataclass(frozen=True)
    class Halved(Compressor):
        def compress(self, x, random, memory=None, shapes=()):
            return DenseVector(x / 2)

        def contraction(self, dimension):
            return 0.75

    run = run_of("auto", Halved(), tacit.EF21(), 12)
    assert {event.label for event in run.trace.of("exchange")} == {"all-gather"}


# Compressed rounds.


@pytest.mark.parametrize("form", ["gather", "scatter"])
def test_a_compressed_round_is_one_round(form: str):
    strategy = tacit.LocalSGD(period=tacit.Every(4), compressor=TopK(fraction=0.1), aggregate=form)
    run = tacit.simulate(workloads.digits(), strategy, cluster=tacit.Cluster(workers=4), steps=40)
    assert run.summary()["rounds"] == 10
    labels = {event.label for event in run.trace.of("exchange")}
    assert labels == ({"all-gather"} if form == "gather" else {"all-to-all", "all-gather"})


@pytest.mark.parametrize("compressor", [TopK(fraction=0.01), QSGD(bits=4)], ids=str)
def test_the_variance_of_a_compressed_round_is_that_of_the_models(compressor: Compressor):
    """Within what a sketch of 256 numbers can tell; what compression leaves out does not count as variance."""
    seen: list[float] = []

    class Watching(tacit.VariancePeriod):
        def update(self, state, reduced):
            seen.append(reduced.variance)
            super().update(state, reduced)

    workload = workloads.digits(split="sorted")
    start = nn.utils.parameters_to_vector(workload.open(4, Streams(3)).module.parameters()).detach()
    strategy = tacit.LocalSGD(period=Watching(initial=4, sampling_steps=48), compressor=compressor)
    run = tacit.simulate(
        workload, strategy, cluster=tacit.Cluster(workers=4), steps=48, seed=3, evaluate_every=1, start=start
    )
    true = [row["spread"] for row in run.history if row["step"] % 4 == 0 and row["step"] > 0]
    ratios = np.array(seen[0::4]) / np.array(true)
    assert len(ratios) == 12
    assert abs(ratios.mean() - 1) < 0.1 and np.abs(ratios - 1).max() < 0.3


def test_statistics_of_another_length_are_refused():
    from tacit.compression.feedback.updates import statistics_of

    rows = [
        UpdateWithStatistics(1.0, b"", False, torch.zeros(3)),
        UpdateWithStatistics(1.0, b"", False, torch.zeros(2)),
    ]
    for said in (rows, [rows[0], Update(1.0)]):
        with pytest.raises(BadMessage, match="each rank sends 3 numbers"):
            statistics_of(said, torch.zeros(3))
