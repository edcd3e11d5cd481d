"""The rows of a matrix compressed in one call: the messages, estimates and random streams of one call per row."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import Tensor

import tacit
from tacit import workloads
from tacit.compression import (
    QSGD,
    BFloat16,
    BlockTopK,
    Chain,
    Compressor,
    Dense,
    Layerwise,
    RandomK,
    Sign,
    TopK,
)
from tacit.compression.coding.index_rows import encode_rows
from tacit.compression.coding.indices import encode
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.encoding import Encoding
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.compression.kernels.matrix_rows import matrix_of, stacked
from tacit.compression.kernels.row_selection import largest_of_rows
from tacit.compression.kernels.selection import largest
from tacit.core.network import Gathered
from tacit.errors import BadMessage

COMPRESSORS: list[Compressor] = [
    TopK(k=5),
    TopK(fraction=0.3),
    TopK(fraction=1.0),
    RandomK(k=6),
    RandomK(k=6, scaled=True),
    BlockTopK(block=8),
    QSGD(bits=2, bucket=8),
    QSGD(bits=4),
    QSGD(bits=5, bucket=16),
    QSGD(bits=8, bucket=3),
    Sign(),
    BFloat16(),
    Dense(),
    Chain(TopK(k=9), QSGD(bits=4)),
    Chain(TopK(k=9), Sign()),
    Chain(RandomK(k=4), BFloat16()),
    Layerwise(TopK(k=2)),
]
FEEDBACKS: list[Feedback] = [
    tacit.NoFeedback(),
    tacit.ErrorFeedback(),
    tacit.EF21(),
    tacit.EF21(init="full"),
    tacit.EF21Momentum(eta=0.3),
    tacit.EF21HeavyBall(eta=0.5),
    tacit.EF21Partial(probability=0.5),
    tacit.EF21Weighted(weights=[1.0, 2.0, 3.0, 4.0]),
    tacit.EF21Bidirectional(master=TopK(k=3)),
    tacit.EF21Plus(),
]


def matrix(kind: str, seed: int, rows: int = 4, numbers: int = 61) -> Tensor:
    """Return rows of random numbers; "ties": few magnitudes, zeros among them; "empty": some rows are zero."""
    drawn = torch.randn(rows, numbers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if kind == "ties":
        return (2 * drawn).round() / 2
    if kind == "empty":
        drawn[seed % rows] = 0.0
    return drawn


def streams(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, rank)) for rank in range(count)]


def states_of(randoms: list[np.random.Generator]) -> list[object]:
    return [random.bit_generator.state for random in randoms]


@given(
    compressor=draw.sampled_from(COMPRESSORS),
    kind=draw.sampled_from(["normal", "ties", "empty"]),
    dtype=draw.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    numbers=draw.integers(1, 130),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=150)
def test_rows_are_compressed_as_one_by_one(
    compressor: Compressor, kind: str, dtype: torch.dtype, numbers: int, seed: int
):
    rows, together, alone = matrix(kind, seed, numbers=numbers).to(dtype), streams(4, seed), streams(4, seed)
    found = compressor.compress_rows(rows, together, [{} for _ in rows])
    expected = [compressor.compress(row, random, {}) for row, random in zip(rows, alone, strict=True)]
    assert [one.pack() for one in found] == [one.pack() for one in expected]
    assert [one.is_owned for one in found] == [one.is_owned for one in expected]
    assert states_of(together) == states_of(alone)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.dense(), other.dense())


@given(
    compressor=draw.sampled_from([QSGD(bits=2, bucket=8), QSGD(bits=3, bucket=10), QSGD(bits=8, bucket=3), TopK(k=5)]),
    numbers=draw.integers(0, 130),
    dtype=draw.sampled_from([torch.float32, torch.bfloat16]),
    scales=draw.lists(draw.sampled_from([1.0, 0.3]), min_size=4, max_size=4),
    other=draw.sampled_from([None, QSGD(bits=5, bucket=8)]),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=100)
def test_messages_are_added_together_as_one_by_one(
    compressor: Compressor,
    numbers: int,
    dtype: torch.dtype,
    scales: list[float],
    other: Compressor | None,
    seed: int,
):
    """Bit for bit, since float64 sums depend on the order; also where one message has another number of bits."""
    rows = matrix("normal", seed, numbers=numbers).to(dtype)
    messages = [compressor.compress(row, random, {}) for row, random in zip(rows, streams(4, seed), strict=True)]
    if other is not None and isinstance(compressor, QSGD):
        messages[2] = other.compress(rows[2], np.random.default_rng(seed), {})
    together, alone = torch.zeros(2, numbers, dtype=torch.float64)
    type(messages[0]).add_all_into(messages, together, scales)
    for message, scale in zip(messages, scales, strict=True):
        message.add_into(alone, scale)
    assert torch.equal(together, alone)
    with pytest.raises(BadMessage, match=f"of {numbers} numbers came where {numbers + 1} were expected"):
        type(messages[0]).add_all_into(messages, torch.zeros(numbers + 1, dtype=torch.float64), scales)


@given(
    compressor=draw.sampled_from(COMPRESSORS),
    kind=draw.sampled_from(["normal", "ties", "empty"]),
    dtype=draw.sampled_from([torch.float32, torch.float64]),
    scale=draw.sampled_from([1.0, 0.25]),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=100)
def test_changes_are_compressed_as_one_by_one(
    compressor: Compressor, kind: str, dtype: torch.dtype, scale: float, seed: int
):
    rows, together, alone = matrix(kind, seed), streams(4), streams(4)
    estimates = [matrix(kind, seed + 1) for _ in range(2)]
    found = compressor.compress_changes(rows, estimates[0], together, [{} for _ in rows], (), dtype, scale)
    expected = [
        compressor.compress_change(row, estimate, random, {}, (), dtype, scale)
        for row, estimate, random in zip(rows, estimates[1], alone, strict=True)
    ]
    assert [one.pack() for one in found] == [one.pack() for one in expected]
    assert torch.equal(*estimates)
    assert states_of(together) == states_of(alone)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_a_row_that_is_not_finite_is_named_and_no_estimate_changes(compressor: Compressor):
    rows, estimates = matrix("normal", 0), matrix("normal", 1)
    rows[2, 7] = float("nan")
    before = estimates.clone()
    with pytest.raises(ValueError, match=r"x\[7\]=nan is not finite"):
        compressor.compress_rows(rows, streams(4), [{} for _ in rows])
    with pytest.raises(ValueError, match=r"x\[7\]=nan is not finite"):
        compressor.compress_changes(rows, estimates, streams(4), [{} for _ in rows])
    assert torch.equal(estimates[2:], before[2:])


@given(length=draw.integers(2, 3000), share=draw.floats(0, 1), crowd=draw.floats(0.05, 1), seed=draw.integers(0, 99))
@settings(deadline=None, max_examples=150)
def test_indices_of_rows_are_coded_as_one_by_one(length: int, share: float, crowd: float, seed: int):
    """Rows whose indices lie anywhere, and rows whose indices are crowded at the beginning of the vector."""
    random, reach = np.random.default_rng(seed), [length, max(1, int(crowd * length))]
    count = max(1, min(int(share * length), *reach))
    drawn = [np.sort(random.choice(reach[row % 2], count, replace=False)) for row in range(5)]
    positions = torch.from_numpy(np.stack(drawn))
    for one, row in zip(encode_rows(positions, length), positions, strict=True):
        other = encode(row, length)
        assert (one.coding, one.parameter, one.count) == (other.coding, other.parameter, other.count)
        assert torch.equal(one.packed, other.packed) and torch.equal(one.positions, row)


@given(
    kind=draw.sampled_from(["normal", "ties", "empty"]),
    k=draw.integers(1, 299),
    dtype=draw.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=100)
def test_rows_select_as_one_by_one(kind: str, k: int, dtype: torch.dtype, seed: int):
    rows = matrix(kind, seed, 5, 300).to(dtype)
    columns, values = largest_of_rows(rows, k)
    for row, column, value in zip(rows, columns, values, strict=True):
        alone = largest(row, k)
        assert torch.equal(column, alone.positions) and torch.equal(value, alone.values)


# Feedback.


def encodings(
    feedback: Feedback, compressor: Compressor, weights: list[float], dtype: torch.dtype = torch.float32
) -> list[Encoding]:
    """Return the encodings of a first exchange of four ranks."""
    like = torch.zeros(61, dtype=dtype)
    scale, made = feedback.scale(compressor, 61), []
    for rank, weight in enumerate(weights):
        state, random = feedback.begin(rank, 4, like), np.random.default_rng(rank)
        codec = Codec(compressor, random, random, 61, dtype, like.device, (), scale, weight, 0.1)
        made.append(Encoding(feedback, state, like, codec))
    return made


def with_vectors(several: list[Encoding], vectors: Tensor) -> list[Encoding]:
    return [Encoding(one.feedback, one.state, vector, one.codec) for one, vector in zip(several, vectors, strict=True)]


def assert_equal_states(one: FeedbackState, other: FeedbackState) -> None:
    assert one.weights == other.weights
    for name, value in {**one.own, **one.shared, **one.warm}.items():
        assert torch.equal(value, {**other.own, **other.shared, **other.warm}[name]), name


@given(
    feedback=draw.sampled_from(FEEDBACKS),
    compressor=draw.sampled_from([TopK(k=5), QSGD(bits=4), Sign(), Chain(TopK(k=9), Sign())]),
    dtype=draw.sampled_from([torch.float32, torch.float64]),
    kinds=draw.lists(draw.sampled_from(["normal", "ties", "empty"]), min_size=3, max_size=3),
    weights=draw.lists(draw.sampled_from([0.0, 2.0**-60, 1.0, 1.0, 1.0, 0.7]), min_size=4, max_size=4),
    seed=draw.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_ranks_encode_together_as_one_by_one(
    feedback: Feedback, compressor: Compressor, dtype: torch.dtype, kinds: list[str], weights: list[float], seed: int
):
    if feedback.needs_determinism and not compressor.is_deterministic:
        compressor = TopK(k=5)
    together = encodings(feedback, compressor, weights, dtype)
    alone = copy.deepcopy(together)
    for step, kind in enumerate(kinds):
        vectors = matrix(kind, seed + step).to(dtype)
        together, alone = with_vectors(together, vectors), with_vectors(alone, vectors)
        found, expected = Encoding.make_all(together), [one.make() for one in alone]
        assert [one.pack() for one in found] == [one.pack() for one in expected]
        for updates, several in ((found, together), (expected, alone)):
            means = [one.feedback.decode_updates(one.state, updates, one.codec) for one in several]
            assert all(torch.equal(mean, means[0]) for mean in means)
        for one, other in zip(together, alone, strict=True):
            assert_equal_states(one.state, other.state)


def test_ranks_share_the_sum_of_the_estimates_only_where_it_is_equal():
    """A rank that has missed an exchange keeps its own sum; the others hold one tensor, and no exchange writes to it."""
    several = with_vectors(encodings(tacit.EF21(), TopK(k=5), [1.0] * 4), matrix("normal", 0).float())
    alone = copy.deepcopy(several[1])
    odd = several[3].state
    odd.shared["sum"] += 1.0
    for seed in range(1, 4):
        several = with_vectors(several, matrix("normal", seed).float())
        updates = Gathered(Encoding.make_all(several))  # as ranks get them in the simulator
        means = [one.feedback.decode_updates(one.state, updates, one.codec) for one in several]
        expected = alone.feedback.decode_updates(alone.state, updates, alone.codec)
        assert all(torch.equal(mean, expected) for mean in means[:3])
        assert several[0].state.shared["sum"] is several[2].state.shared["sum"]
        torch.testing.assert_close(odd.shared["sum"], several[0].state.shared["sum"] + 1.0)
        torch.testing.assert_close(means[3], expected + 0.25)  # 1.0 over four ranks


# In a simulation.


def run_of(strategy: tacit.Strategy, workers: int = 4, **rest) -> tacit.Run:
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.02))
    return tacit.simulate(workloads.quadratic(dimension=61, noise=0.1), strategy, cluster=cluster, steps=6, **rest)


STRATEGIES = [
    tacit.CompressedGradient(compressor=TopK(k=3), feedback=tacit.EF21()),
    tacit.CompressedGradient(compressor=QSGD(bits=4), feedback=tacit.NoFeedback(), aggregate="gather"),
    tacit.CompressedGradient(compressor=Sign(), feedback=tacit.ErrorFeedback(), weights="equal"),
    tacit.LocalSGD(period=tacit.Every(2), compressor=TopK(k=3)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_simulation_encodes_a_round_together(strategy: tacit.Strategy, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    together = Encoding.make_all

    def counted(several: list[Encoding]) -> list[Update]:
        calls.append(len(several))
        return together(several)

    monkeypatch.setattr(Encoding, "make_all", counted)
    run = run_of(strategy, host="thread")
    assert calls == [4] * int(run.summary()["rounds"])
    monkeypatch.setattr(Encoding, "make_all", lambda several: [one.make() for one in several])
    assert run_of(strategy, host="thread").digest == run.digest
    assert run_of(strategy).digest == run.digest  # without fibers, where one call is the hook of all ranks


def test_ranks_decode_the_replies_of_a_scattered_exchange_once(monkeypatch: pytest.MonkeyPatch):
    sums: list[int] = []
    compute = Codec._computed_once

    def counted(self: Codec, messages, factors, add_all) -> Tensor:
        def noted(total: Tensor) -> None:
            sums.append(total.numel())
            add_all(total)

        return compute(self, messages, factors, noted)

    monkeypatch.setattr(Codec, "_computed_once", counted)
    run_of(tacit.CompressedGradient(compressor=TopK(k=3), feedback=tacit.EF21(), aggregate="scatter"))
    assert sums.count(61) == 6  # one for each round, besides each rank's sum of its range


@dataclass(frozen=True, kw_only=True)
class Clipped(tacit.EF21):
    """A feedback of a user who overrides the form for one rank."""

    largest: float = 0.01

    def encode(self, state, vector, *rest):
        return super().encode(state, vector.clamp(-self.largest, self.largest), *rest)


@dataclass(frozen=True, kw_only=True)
class First(TopK):
    """A compressor of a user who overrides the form for one vector."""

    def select(self, x, random, shapes):
        return TopK(k=2).select(torch.where(torch.arange(x.numel()) < 4, x, 0), random, shapes)

    def compress_change(self, x, estimate, random, *rest):
        return Compressor.compress_change(self, x, estimate, random, *rest)


@pytest.mark.parametrize("feedback", [Clipped(), tacit.NoFeedback(), tacit.EF21()], ids=str)
@pytest.mark.parametrize("compressor", [TopK(k=2), First(k=2)], ids=["TopK", "First"])
def test_an_override_of_the_form_for_one_is_not_bypassed(feedback: Feedback, compressor: Compressor):
    together = with_vectors(encodings(feedback, compressor, [1.0] * 4), matrix("normal", 3).float())
    alone = copy.deepcopy(together)
    assert [one.pack() for one in Encoding.make_all(together)] == [one.make().pack() for one in alone]


# Rows of one matrix.


def test_adjacent_rows_are_a_view_of_their_matrix():
    whole = matrix("normal", 0, 6)
    for begin, end in ((0, 6), (2, 5), (5, 6)):
        found = matrix_of([whole[row] for row in range(begin, end)])
        assert found is not None and torch.equal(found, whole[begin:end])
        assert found.data_ptr() == whole[begin].data_ptr()


@pytest.mark.parametrize("order", [[0, 2], [1, 0], [0, 0]])
def test_other_rows_are_no_matrix_and_are_copied(order: list[int]):
    whole = matrix("normal", 0)
    rows = [whole[row] for row in order]
    assert matrix_of(rows) is None
    assert torch.equal(stacked(rows), whole[order])
    assert matrix_of([whole[0], whole[1].float()]) is None
    assert matrix_of([whole[0], whole[1].clone()]) is None
    assert matrix_of([whole[:, 0], whole[:, 1]]) is None


@pytest.mark.parametrize("feedback", [tacit.EF21(), tacit.EF21Momentum(eta=0.3)], ids=str)
def test_encoding_does_not_change_the_vectors(feedback: Feedback):
    """The rows are views of the gradients of all ranks."""
    vectors = matrix("normal", 0)
    before = vectors.clone()
    Encoding.make_all(with_vectors(encodings(feedback, TopK(k=5), [0.7] * 4, torch.float64), vectors))
    assert torch.equal(vectors, before)


@pytest.mark.parametrize("are_rows", [True, False])
def test_a_vector_that_is_not_finite_raises_before_any_state_changes(are_rows: bool):
    vectors = matrix("normal", 0).float()
    vectors[2, 7] = float("inf")

    def check(vector: Tensor) -> None:
        if not vector.isfinite().all():
            raise tacit.NotFinite(2, 1, float("inf"), "gradient")

    several = with_vectors(encodings(tacit.EF21(), TopK(k=5), [1.0] * 4), vectors)
    several = [replace(one, check=check, vector=one.vector if are_rows else one.vector.clone()) for one in several]
    with pytest.raises(tacit.NotFinite):
        Encoding.make_all(several)
    assert not any(one.state.own["estimate"].any() for one in several)
