"""The laws compressors live by, each on drawn vectors and on the ones that hurt most."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.compression import (
    QSGD,
    BFloat16,
    BlockTopK,
    Chain,
    Compressed,
    Compressor,
    Dense,
    Lattice,
    Layerwise,
    LowRank,
    RandomK,
    Sign,
    TopK,
)
from tacit.errors import BadMessage
from tacit.testing.compressors import Case, check_contraction, check_unbiased

numbers = st.floats(-1e6, 1e6, width=32).filter(lambda n: n == 0 or abs(n) > 1e-10)
vectors = st.lists(numbers, min_size=1, max_size=70).map(lambda drawn: torch.tensor(drawn, dtype=torch.float32))


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


CONTRACTIVE: list[Compressor] = [
    Dense(),
    BFloat16(),
    TopK(k=1),
    TopK(fraction=0.1),
    BlockTopK(block=8),
    BlockTopK(block=16, k=3),
    Sign(),
    Chain(TopK(k=5), Sign()),
    Chain(TopK(fraction=0.3), BFloat16()),
]


@pytest.mark.slow
@pytest.mark.parametrize("compressor", CONTRACTIVE, ids=str)
@given(x=vectors)
@example(x=torch.ones(64))
@example(x=torch.tensor([0.0] * 63 + [1.0]))
@settings(deadline=None)
def test_deterministic_compressors_contract_every_vector(compressor: Compressor, x: Tensor):
    check_contraction(compressor, Case("drawn", x, ()))


@given(x=vectors, k=st.integers(1, 80))
@settings(deadline=None)
def test_top_k_keeps_the_largest_and_the_lower_of_equals(x: Tensor, k: int):
    order = sorted(range(x.numel()), key=lambda i: (-abs(float(x[i])), i))[:k]
    kept = sorted(i for i in order if x[i] != 0)
    assert TopK(k=k).compress(x, stream()).positions().tolist() == kept


@given(x=vectors, block=st.integers(1, 20), k=st.integers(1, 20))
@settings(deadline=None)
def test_block_top_k_keeps_the_largest_of_every_block(x: Tensor, block: int, k: int):
    k = min(k, block)
    kept = []
    for begin in range(0, x.numel(), block):
        places = range(begin, min(x.numel(), begin + block))
        kept += sorted(sorted(places, key=lambda i: (-abs(float(x[i])), i))[:k])
    message = BlockTopK(block=block, k=k).compress(x, stream())
    assert message.positions().tolist() == kept
    assert torch.equal(message.dense()[kept], x[kept])


@pytest.mark.parametrize("k", [1, 300, 5000])
@pytest.mark.parametrize(
    "name", ["normal", "heavy", "mostly zeros", "all equal", "sorted", "strided", "few nonzeros", "half", "bfloat"]
)
def test_selection_by_a_sampled_threshold_is_exact(name: str, k: int):
    """Long vectors are sampled first; these are ones a sample can get wrong."""
    n = 300_000
    x = torch.randn(n, generator=torch.Generator().manual_seed(k))
    match name:
        case "heavy":
            x = x.pow(9)
        case "mostly zeros":
            x = x * (torch.rand(n, generator=torch.Generator().manual_seed(1)) < 0.003)
        case "all equal":
            x = x.sign()
        case "sorted":
            x = x.sort().values
        case "strided":  # every sampled number is small, or every one large
            x[:: n // 2**16] *= 1e3 if k == 300 else 1e-3
        case "few nonzeros":
            x = torch.zeros(n)
            x[[5, 77, 299_999]] = torch.tensor([1.0, -2.0, 3.0])
        case "half":
            x = x.to(torch.float16)
        case "bfloat":
            x = x.to(torch.bfloat16)
    order = torch.sort(x.abs(), descending=True, stable=True).indices[:k]
    expected = order[x[order] != 0].sort().values
    assert torch.equal(TopK(k=k).compress(x, stream()).positions(), expected)


@pytest.mark.parametrize("n", [2 * 2**16 - 6, 2 * 2**16, 200_003])
def test_long_vectors_are_walked_in_pieces_and_come_out_whole(n: int):
    """The last piece may be as long as the others, or ragged, or short."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x[2**16 - 6 : 2**16] = 9.0  # must not be seen again behind the end of the next piece
    padded = torch.nn.functional.pad(x, (0, -n % 128), value=0.0).view(-1, 128)
    best = padded.abs().argmax(1) + 128 * torch.arange(len(padded))
    assert torch.equal(BlockTopK(block=128).compress(x, stream()).positions(), best)
    assert int(BlockTopK(block=96, k=2).compress(x, stream()).positions()[-1]) < n

    buckets = torch.nn.functional.pad(x, (0, -n % 512)).view(-1, 512).abs().amax(1).repeat_interleave(512)[:n]
    error = QSGD(bits=8, bucket=512).compress(x, stream()).dense() - x
    assert bool((error.abs() <= buckets / 127 * (1 + 1e-5)).all())
    assert abs(float((error / (buckets / 127)).mean())) < 6 * 0.5 / math.sqrt(n)

    message = Lattice(bits=8, side=0.01).compress(x, stream())
    assert float((message.dense(x + 1.2) - x).abs().max()) < 0.0051
    assert torch.equal(Sign().compress(x, stream()).dense() > 0, x >= 0)


def test_a_number_that_is_not_finite_is_found_in_a_long_vector():
    for compressor in (TopK(fraction=0.01), BlockTopK(), QSGD(), Sign(), RandomK(k=1), Dense(), Lattice()):
        x = torch.ones(300_000)
        x[200_001] = math.nan
        with pytest.raises(ValueError, match=r"x\[200001\]=nan is not finite \(1 of 300000 numbers are not\)"):
            compressor.compress(x, stream())


def test_large_finite_numbers_are_not_taken_for_infinities():
    x = torch.full((100,), 3.4e38)
    x[::2] *= -1
    for compressor in (Dense(), BFloat16(), TopK(k=3), BlockTopK(), QSGD(), Sign()):
        assert bool(compressor.compress(x.abs(), stream()).dense().isfinite().all())
        assert bool(compressor.compress(x, stream()).dense().isfinite().all())


def test_layer_by_layer_takes_a_share_of_every_tensor_and_tiny_ones_whole():
    shapes = (torch.Size((40, 50)), torch.Size((7,)), torch.Size((2000,)))
    x = torch.cat([torch.randn(2000) * 1e-3, torch.randn(7) * 1e-6, torch.randn(2000)])
    message = Layerwise(TopK(fraction=0.01)).compress(x, stream(), None, shapes)
    places = message.positions()
    assert (places < 2000).sum() == 20 and (places >= 2007).sum() == 20
    assert places[(places >= 2000) & (places < 2007)].tolist() == list(range(2000, 2007))
    assert (TopK(fraction=0.01).compress(x, stream(), None, shapes).positions() < 2007).sum() == 0


def test_sign_layer_by_layer_has_a_scale_for_each_tensor_and_sends_tiny_ones_whole():
    shapes = (torch.Size((2000,)), torch.Size((5,)), torch.Size((40, 50)))
    x = torch.cat([torch.full((2000,), 3.0), torch.arange(5.0), torch.full((2000,), -0.5)])
    assert torch.equal(Layerwise(Sign()).compress(x, stream(), None, shapes).dense(), x)
    assert Sign().compress(x, stream(), None, shapes).dense().abs().unique().numel() == 1


LOCAL: list[Compressor] = [
    Dense(),
    BFloat16(),
    TopK(fraction=0.1),
    RandomK(k=7),
    BlockTopK(block=100, k=3),
    QSGD(bits=4),
    Sign(),
    LowRank(rank=1),
    Lattice(bits=8),
    Chain(TopK(k=9), QSGD(bits=8)),
]


@pytest.mark.parametrize("compressor", LOCAL, ids=str)
def test_layer_by_layer_is_each_tensor_for_itself_and_remembers_each(compressor: Compressor):
    shapes = (torch.Size((30, 40)), torch.Size((5,)), torch.Size((1100,)))
    random, mine, own = stream(), {}, ({}, {})
    layerwise = Layerwise(compressor)
    for call in range(2):
        x = torch.randn(2305, generator=torch.Generator().manual_seed(call))
        message = layerwise.compress(x, stream(call), mine, shapes)
        random = stream(call)
        first = compressor.compress(x[:1200], random, own[0], shapes[:1]).dense(x[:1200])
        last = compressor.compress(x[1205:], random, own[1], shapes[2:]).dense(x[1205:])
        assert torch.equal(message.dense(x), torch.cat([first, x[1200:1205], last]))


ADDED = [compressor for compressor in LOCAL if not compressor.needs_reference]


@pytest.mark.parametrize("compressor", [*ADDED, Layerwise(Sign())], ids=str)
@pytest.mark.parametrize("scale", [1.0, -0.3])
def test_adding_a_message_is_adding_its_vector(compressor: Compressor, scale: float):
    shapes = (torch.Size((30, 40)), torch.Size((1100,)))
    x, target = torch.randn(2300), torch.randn(2300, dtype=torch.float64)
    message: Compressed = compressor.compress(x, stream(), {}, shapes)
    expected = target + message.dense().double() * scale
    message.add_into(target, scale)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("compressor", ADDED, ids=str)
@pytest.mark.parametrize("n", [60, 300_000])
def test_a_compressed_change_is_the_compressed_difference_and_moves_the_estimate_by_it(compressor: Compressor, n: int):
    """EF21's c = C(x − g), g ← g + c, also where a selection does it in one pass."""
    x, estimate = torch.randn(n), torch.randn(n, dtype=torch.float64)
    expected = compressor.compress((x - estimate).float(), stream(), {})
    moved = estimate + expected.dense().double()
    assert compressor.compress_change(x, estimate, stream(), {}).pack() == expected.pack()
    assert torch.equal(estimate, moved)


def test_a_change_that_is_not_finite_leaves_the_estimate_alone():
    x, estimate = torch.ones(300_000), torch.ones(300_000, dtype=torch.float64)
    x[123] = math.nan
    for compressor in (TopK(fraction=0.01), QSGD(), BlockTopK()):
        with pytest.raises(ValueError, match=r"x\[123\]=nan is not finite"):
            compressor.compress_change(x, estimate, stream())
        assert bool((estimate == 1).all())


def test_a_message_of_another_length_is_not_added():
    for compressor in (TopK(k=1), Dense()):
        with pytest.raises(BadMessage, match="of 1 numbers came where 5 were expected"):
            compressor.compress(torch.ones(1), stream()).add_into(torch.zeros(5))


def test_shapes_that_do_not_fit_are_refused():
    for compressor in (Layerwise(TopK(k=1)), Layerwise(Sign()), LowRank()):
        with pytest.raises(ValueError, match="the shapes hold 6 numbers and x 7"):
            compressor.compress(torch.ones(7), stream(), None, (torch.Size((2, 3)),))


@given(x=vectors, bits=st.integers(2, 8), bucket=st.integers(1, 90), seed=st.integers(0, 99))
@settings(deadline=None)
def test_qsgd_rounds_to_a_neighbouring_level(x: Tensor, bits: int, bucket: int, seed: int):
    decoded = QSGD(bits=bits, bucket=bucket).compress(x, stream(seed)).dense()
    levels = 2 ** (bits - 1) - 1
    for begin in range(0, x.numel(), bucket):
        part, back = x[begin : begin + bucket], decoded[begin : begin + bucket]
        step = float(part.abs().max()) / levels
        assert bool(((back - part).abs() <= step * (1 + 1e-5)).all())
        assert bool((back[part == 0] == 0).all()) and bool((back.abs() <= part.abs().max()).all())


def test_qsgd_is_unbiased_also_for_subnormal_numbers():
    x = torch.tensor([1e-42, 3e-43, -7e-43]).repeat(10)
    mean = torch.stack([QSGD(bits=2).compress(x, stream(i)).dense().double() for i in range(2000)]).mean(0)
    assert torch.allclose(mean * 1e42, x.double() * 1e42, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "compressor",
    [QSGD(bits=2, bucket=64), QSGD(bits=4), RandomK(k=4, scaled=True), Chain(RandomK(k=9, scaled=True), QSGD())],
    ids=str,
)
def test_unbiased_compressors_are_unbiased(compressor: Compressor):
    check_unbiased(compressor, 50, seed=3)


def test_the_constants_are_those_of_the_papers():
    assert TopK(k=5).contraction(100) == RandomK(k=5).contraction(100) == 0.05
    assert TopK(fraction=0.015).contraction(100) == 0.02  # rounded up: two of a hundred
    assert TopK(k=500).contraction(100) == 1.0
    assert RandomK(k=5, scaled=True).variance(100) == 19 and RandomK(k=5, scaled=True).contraction(100) is None
    assert RandomK(k=80, scaled=True).contraction(100) == pytest.approx(0.75)
    assert BlockTopK(block=50, k=2).contraction(10_000) == 0.04
    assert QSGD(bits=8, bucket=512).variance(10**6) == pytest.approx(512 / (4 * 127**2))
    assert QSGD(bits=2, bucket=512).contraction(10**6) is None
    assert Sign().contraction(100) == 0.01 and Sign().variance(100) is None
    assert Chain(TopK(k=10), QSGD()).contraction(100) == pytest.approx(0.1 * (1 - 10 / (4 * 127**2)))
    assert LowRank(rank=2).contraction(10_000) == 0.02
    assert Lattice().contraction(100) is None
    assert Layerwise(TopK(fraction=0.015)).contraction(100) == 0.015  # a longer tensor is not rounded up as far
    assert Layerwise(TopK(k=5)).contraction(100) == 0.05
    assert Layerwise(RandomK(fraction=0.3, scaled=True)).variance(100) == pytest.approx(1 / 0.3 - 1)
    assert Layerwise(Chain(TopK(fraction=0.2), Sign())).contraction(100) == pytest.approx(0.2 / 20)
    for compressor in (Dense(), BFloat16(), TopK(), RandomK(), BlockTopK(), QSGD(), Sign(), LowRank()):
        assert compressor.contraction(0) is not None


def test_low_rank_is_exact_for_matrices_of_its_rank_and_improves_with_a_warm_start():
    random, memory = stream(), {}
    shapes = (torch.Size((40, 60)), torch.Size((30,)))
    generator = torch.Generator().manual_seed(0)
    thin = torch.randn(40, 2, generator=generator) @ torch.randn(2, 60, generator=generator)
    exact = torch.cat([thin.view(-1), torch.randn(30, generator=generator)])
    assert torch.allclose(LowRank(rank=2).compress(exact, random, {}, shapes).dense(), exact, atol=1e-4)

    full = torch.cat([torch.randn(2400, generator=generator), torch.zeros(30)])
    losses = [float((LowRank(rank=2).compress(full, random, memory, shapes).dense() - full).norm()) for _ in range(8)]
    best = float(torch.linalg.svdvals(full[:2400].view(40, 60))[2:].norm())
    assert losses[-1] < losses[0] and best <= losses[-1] < 1.01 * best
    assert losses == sorted(losses, reverse=True)


def test_low_rank_drops_a_warm_start_that_captures_nothing():
    shapes = (torch.Size((20, 20)),)
    memory = {"0": torch.eye(20)[:, :1]}
    x = torch.zeros(20, 20)
    x[3:, 5] = 1.0  # the remembered direction sees none of it
    decoded = LowRank(rank=1).compress(x.view(-1), stream(), memory, shapes).dense()
    assert torch.allclose(decoded, x.view(-1), atol=1e-6)


def test_bfloat16_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match=r"1e\+300 is too large for bfloat16"):
        BFloat16().compress(torch.tensor([1.0, 1e300], dtype=torch.float64), stream())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(k=0), "k=0 must be a whole number, at least 1"),
        (lambda: TopK(k=1, fraction=0.1), "exclude each other; give one"),
        (lambda: RandomK(fraction=1.5), "fraction=1.5 must be above 0 and at most 1"),
        (lambda: BlockTopK(block=4, k=5), "k=5 must be a whole number from 1 to block=4"),
        (lambda: QSGD(bits=1), r"bits=1 must be .* for one bit use Sign\(\)"),
        (lambda: QSGD(bucket=0), "bucket=0 must be"),
        (lambda: LowRank(rank=0), "rank=0 must be"),
        (lambda: Lattice(side=0.0), "side=0.0 must be from 2"),
        (lambda: Lattice(bits=17), "bits=17 must be a whole number from 2 to 16"),
        (lambda: Layerwise(Layerwise(TopK())), r"compressor=Layerwise\(TopK\(fraction=0.01\)\) must be a compressor"),
        (lambda: Layerwise(Sign(), exempt_below=-1), "exempt_below=-1 must be a whole number"),
        (lambda: Chain(QSGD(), TopK()), r"first=QSGD\(bits=8\) must select coordinates"),
        (lambda: Chain(TopK(), TopK()), "must compress all values"),
        (lambda: Chain(TopK(), Lattice()), "needs a reference"),
    ],
)
def test_bad_arguments_are_told(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_flat_vector_is_refused():
    with pytest.raises(ValueError, match="a compressor takes a flat vector"):
        TopK().compress(torch.ones(2, 2), stream())
    with pytest.raises(TypeError, match=r"x is torch.int64; compressors take float32"):
        QSGD().compress(torch.ones(2, dtype=torch.int64), stream())
