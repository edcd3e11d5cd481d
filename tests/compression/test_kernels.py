"""The inner loops against brute force.

With Triton installed, TRITON_INTERPRET=1 sends the CPU's tests through the kernels as well.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.compression.kernels import backend, lattice, quantization, selection

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; none is here"),
        ],
    ),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
BIG = selection.WORTH_SAMPLING + 12345  # long enough to be sampled, and no multiple of anything


def normal(n: int, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(device)


def brute_force(x: Tensor, k: int) -> Tensor:
    """Positions of the k largest magnitudes by a stable sort: ties to the lower position, zeros left out."""
    found = x.cpu().abs().sort(descending=True, stable=True).indices[:k].sort().values
    return found[x.cpu()[found] != 0]


def assert_selected(x: Tensor, k: int) -> None:
    positions, values = selection.largest(x, k).nonzero()
    assert positions.dtype == torch.int64 and values.dtype == x.dtype and values.device == x.device
    expected = brute_force(x, k)
    assert torch.equal(positions.cpu(), expected)
    assert torch.equal(values.cpu(), x.cpu()[expected])


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 1e-40, 3e38]), min_size=1, max_size=40),
    share=st.floats(0, 1),
)
def test_selection_is_exact_and_ties_go_to_the_lower_position(numbers: list[float], share: float):
    assert_selected(torch.tensor(numbers), round(share * len(numbers)))


@on_each_device
@pytest.mark.parametrize("n", [1, 2, 1000, 8192, 8193, 100_000])
def test_selection_of_every_size(n: int, device: str):
    for k in {0, 1, n // 100, n // 2, n - 1, n}:
        assert_selected(normal(n, device), k)


def tricky(name: str) -> Tensor:
    """Vectors whose sample misleads, or says nothing."""
    x = normal(BIG)
    match name:
        case "normal":
            return x
        case "all equal":
            return torch.full((BIG,), -0.5)
        case "all zero":
            return torch.zeros(BIG)
        case "mostly zero":
            return x.where(torch.arange(BIG) % 1000 == 7, 0.0)
        case "two values":
            return torch.where(x > 1.5, 2.0, -1.0)
        case "sorted":
            return x.sort().values
        case "large ones side by side":
            x[5000:20000] *= 100
            return x
        case "heavy tail":
            return x / normal(BIG, seed=1)
        case "subnormal":
            return x * 1e-40
        case "hidden from the sample":
            seen = ((torch.arange(selection.SAMPLE) * selection.GOLDEN) & 0xFFFFFFFF) * BIG >> 32
            x = x.abs() + 1
            x[seen] = 100.0  # the threshold is far too high
            return x
    raise AssertionError(name)


TRICKY = [
    "normal",
    "all equal",
    "all zero",
    "mostly zero",
    "two values",
    "sorted",
    "large ones side by side",
    "heavy tail",
    "subnormal",
    "hidden from the sample",
]


@on_each_device
@pytest.mark.parametrize("name", TRICKY)
def test_selection_is_exact_whatever_the_sample_says(name: str, device: str):
    x = tricky(name).to(device)
    for k in (1, BIG // 100, BIG // 9):
        assert_selected(x, k)


@on_each_device
@pytest.mark.parametrize("n", [1000, BIG])
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32, torch.float32), (torch.float32, torch.float64), (torch.float64, torch.float64)],
    ids=["float32", "float32 of float64", "float64"],
)
def test_a_step_of_ef21_is_top_k_of_the_difference(n: int, dtypes: tuple[torch.dtype, torch.dtype], device: str):
    x, estimate = normal(n, device).to(dtypes[0]), normal(n, device, seed=1).to(dtypes[1])
    places, values = selection.largest((x - estimate).float(), n // 100).nonzero()
    expected = estimate.clone()
    expected[places] += values.to(estimate.dtype)
    positions, sent = selection.step(x, estimate, n // 100, torch.float32).nonzero()
    assert torch.equal(positions, places) and torch.equal(sent, values)
    assert torch.equal(estimate, expected)


@on_each_device
@pytest.mark.parametrize("n", [1000, BIG])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_told_and_never_enters_the_estimate(n: int, poison: float, device: str):
    x, estimate = normal(n, device), normal(n, device, seed=1).double()
    x[n // 3] = poison
    before = estimate.clone()
    with pytest.raises(ValueError, match=rf"x\[{n // 3}\]={poison} is not finite"):
        selection.step(x, estimate, 5, torch.float32).nonzero()
    assert torch.equal(estimate, before)
    with pytest.raises(ValueError, match=rf"x\[{n // 3}\]={poison} is not finite"):
        selection.largest(x, 1).nonzero()
    assert n // 3 in selection.largest_of_blocks(x, 100, 2)[1]


def test_selection_in_other_dtypes_takes_the_torch_path():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert_selected(normal(5000).to(dtype), 50)


def test_an_estimate_must_be_like_the_vector():
    with pytest.raises(ValueError, match=r"the estimate has shape \(5,\) on cpu, x \(4,\) on cpu; they must agree"):
        selection.step(torch.zeros(4), torch.zeros(5), 1, torch.float32)


@on_each_device
@pytest.mark.parametrize(("block", "k"), [(1, 1), (7, 3), (128, 1), (128, 8), (100, 9), (1000, 4), (10_000, 2)])
@pytest.mark.parametrize("n", [1, 130, 20_000, 70_001])
def test_the_largest_of_blocks_are_those_of_a_stable_sort(block: int, k: int, n: int, device: str):
    x = normal(n, device)
    x[n // 2 :] = x[n // 2 :].round()  # many ties, and zeros
    rows = torch.nn.functional.pad(x.cpu().abs(), (0, -n % block), value=-1.0).view(-1, block)
    columns = rows.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    expected = (columns + block * torch.arange(len(rows)).unsqueeze(1)).view(-1)
    offsets, positions, values = selection.largest_of_blocks(x, block, k)
    assert torch.equal(positions.cpu(), expected[expected < n])
    assert torch.equal(offsets, positions % block) and torch.equal(values, x[positions])


@on_each_device
@pytest.mark.parametrize(
    ("levels", "bucket", "n"), [(127, 1024, 5000), (7, 100, 1050), (1, 3, 10), (127, 1, 7), (127, 20000, 30000)]
)
def test_quantization_is_off_by_less_than_a_level(levels: int, bucket: int, n: int, device: str):
    x = normal(n, device)
    codes, scales = quantization.quantize(x, levels, bucket, 3)
    assert codes.dtype == torch.int8 and int(codes.abs().max()) <= levels
    for number, scale in enumerate(scales):
        assert scale == x[number * bucket : (number + 1) * bucket].abs().max()
    decoded = quantization.dequantize(codes, scales, levels, bucket)
    unit = scales.repeat_interleave(bucket)[:n] / levels
    assert bool(((decoded - x).abs() < unit * (1 + 1e-5)).all())


@on_each_device
def test_quantization_is_unbiased(device: str):
    x, repetitions, levels = normal(64, device), 4096, 127
    many = x.repeat(repetitions)  # each copy has its own bucket and its own coins
    decoded = quantization.dequantize(*quantization.quantize(many, levels, 64, 5), levels, 64)
    decoded = decoded.view(repetitions, 64).double()
    unit = float(x.abs().max()) / levels
    share = (x.double() / unit) % 1
    deviation = unit * (share * (1 - share)).sqrt()
    assert bool(((decoded.mean(0) - x).abs() <= 5 * deviation / math.sqrt(repetitions) + 1e-4 * unit).all())
    spread = decoded.var(0).sqrt()
    assert torch.allclose(spread, deviation, atol=0.05 * unit)  # the law itself: a coin with that probability
    shuffled = decoded - x
    assert abs(float((shuffled[:, 0] * shuffled[:, 1]).mean())) < 5 * unit**2 / 4 / math.sqrt(repetitions)


def test_quantization_by_a_hash_follows_the_same_law():
    """What ``QSGD(compiled=True)`` compiles, as it is: equal seeds, equal codes; others, others; unbiased, and no two
    coins alike.
    """
    x, repetitions = normal(64), 4096
    many, seed = x.repeat(repetitions).view(repetitions, 64), torch.tensor([5, 6], dtype=torch.int32)
    codes, scales = quantization.quantize_by_hash(many, 127, seed)
    assert torch.equal(codes, quantization.quantize_by_hash(many, 127, seed)[0])
    assert torch.equal(scales, many.abs().amax(1)) and int(codes.abs().max()) <= 127
    unit = float(x.abs().max()) / 127
    share = (x.double() / unit) % 1
    deviation = (share * (1 - share)).sqrt()
    error = codes.double() - x.double() / unit
    assert bool((error.mean(0).abs() <= 5 * deviation / math.sqrt(repetitions) + 1e-4).all())
    assert torch.allclose(error.var(0).sqrt(), deviation, atol=0.05)
    drawn = error[:, deviation > 0.1].T
    assert float((drawn.corrcoef() - torch.eye(len(drawn))).abs().max()) < 6 / math.sqrt(repetitions)
    other = quantization.quantize_by_hash(many, 127, seed.flip(0))[0].double() - x.double() / unit
    assert abs(float((error * other).mean())) < 6 * 0.25 / math.sqrt(error.numel())


@on_each_device
def test_quantization_keeps_what_needs_no_rounding(device: str):
    x = torch.tensor([127.0, -127.0, 0.0, 5.0, -64.0, 0.0, 0.0, 0.0], device=device)
    codes, scales = quantization.quantize(x, 127, 5, 0)
    assert codes.tolist() == x.tolist() and scales.tolist() == [127.0, 0.0]
    assert torch.allclose(quantization.dequantize(codes, scales, 127, 5), x)
    tiny = torch.tensor([1e-42, -1e-42, 0.0], device=device)
    assert quantization.quantize(tiny, 127, 3, 0)[0].tolist() == [127, -127, 0]
    huge = torch.tensor([3.4028235e38, -3.4028235e38], device=device)  # one rounding up would be infinite
    assert torch.equal(quantization.dequantize(*quantization.quantize(huge, 127, 2, 0), 127, 2), huge)


@on_each_device
def test_quantization_follows_its_seed(device: str):
    x = normal(10_000, device)
    first, again, other = (quantization.quantize(x, 127, 512, seed)[0] for seed in (1, 1, 2**40))
    assert torch.equal(first, again) and not torch.equal(first, other)


@on_each_device
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_quantization_shows_what_is_not_finite_in_the_scale(poison: float, device: str):
    x = normal(300, device)
    x[150] = poison
    assert quantization.quantize(x, 127, 100, 0)[1].isfinite().tolist() == [True, False, True]


@on_each_device
@pytest.mark.parametrize("bits", [2, 4, 8, 12, 16])
@pytest.mark.parametrize("n", [1, 1000, 100_000])
def test_the_lattice_brings_back_the_nearest_point(n: int, bits: int, device: str):
    side, q = 0.01, 2**bits
    x = normal(n, device)
    y = x + (torch.rand(n, generator=torch.Generator().manual_seed(1)).to(device) - 0.5) * (side * (q - 1) * 0.99)
    sent = lattice.encode(x, side, bits)
    assert sent.codes.dtype == (torch.uint8 if bits <= 8 else torch.int32)
    assert sent.is_in_range and 0 <= int(sent.codes.min()) <= int(sent.codes.max()) < q
    z, check, is_in_range = lattice.decode(sent.codes, y, side, bits, torch.float32)
    assert check == sent.check and is_in_range
    assert torch.equal(z, (x * (1 / side)).round() * side)
    assert bool(((z - x).abs() <= side / 2 + 1e-6).all())


@on_each_device
def test_random_rounding_to_the_lattice_is_unbiased_and_stays_beside(device: str):
    x = torch.tensor([0.3, -1.7, 2.5, 40.0], device=device).repeat(20_000)
    sent = lattice.encode(x, 1.0, 8, seed=7)
    z, check, _ = lattice.decode(sent.codes, x, 1.0, 8, torch.float32)
    assert check == sent.check and bool(((z - x).abs() < 1).all())
    assert torch.allclose(z.view(-1, 4).mean(0), x[:4], atol=0.02)
    assert torch.equal(lattice.encode(x, 1.0, 8, seed=7).codes, sent.codes)


@on_each_device
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_an_overflow_is_told_at_the_very_edge(bits: int, device: str):
    side, q = 0.25, 2**bits  # powers of two: every number below is exact
    x = (normal(10_000, device) * 40).round() * side
    sent = lattice.encode(x, side, bits)
    for coordinate in (0, 1234, 9999):
        for sign in (1, -1):
            y = x.clone()
            y[coordinate] += sign * side * (q / 2 - 1 / 16)
            z, check, _ = lattice.decode(sent.codes, y, side, bits, torch.float32)
            assert check == sent.check and torch.equal(z, x)
            y[coordinate] += sign * side / 8
            z, check, _ = lattice.decode(sent.codes, y, side, bits, torch.float32)
            assert check != sent.check and z[coordinate] - x[coordinate] == sign * q * side


@on_each_device
def test_overflows_that_cancel_in_a_plain_sum_are_told(device: str):
    x, side = normal(4096, device), 2.0**-6
    sent = lattice.encode(x, side, 8)
    for pattern in ((1, -1), (1, -2, 1), (1, 1, -1, -1), (1, -3, 3, -1)):
        for begin in (0, 100, 4000):
            y = x.clone()
            y[begin : begin + len(pattern)] += torch.tensor(pattern, device=device) * (256 * side)
            assert lattice.decode(sent.codes, y, side, 8, torch.float32).check != sent.check


@on_each_device
@pytest.mark.parametrize("poison", [math.nan, math.inf, -3e9])
def test_the_lattice_tells_what_lies_outside_its_range(poison: float, device: str):
    x = normal(100, device)
    sent = lattice.encode(x, 1.0, 8)
    x[50] = poison
    assert not lattice.encode(x, 1.0, 8).is_in_range
    assert not lattice.decode(sent.codes, x, 1.0, 8, torch.float32).is_in_range
    x[50] = 2.0e9
    sent = lattice.encode(x, 1.0, 8)
    assert sent.is_in_range
    assert torch.equal(lattice.decode(sent.codes, x, 1.0, 8, torch.float32).x, x.round())


def test_the_lattice_in_float64():
    x = normal(1000).double()
    sent = lattice.encode(x, 1e-6, 8)
    z, check, _ = lattice.decode(sent.codes, x + 1e-4, 1e-6, 8, torch.float64)
    assert check == sent.check and z.dtype == torch.float64 and float((z - x).abs().max()) <= 0.5e-6 * (1 + 1e-9)


def test_the_weights_of_the_check_are_odd_and_differ():
    cpu = torch.device("cpu")
    weights = lattice.weights(0, 2**20, cpu)
    assert bool((weights & 1 == 1).all()) and weights.unique().numel() > 0.999 * 2**20
    assert torch.equal(weights[5000:6000], lattice.weights(5000, 6000, cpu))
    assert torch.equal(lattice.weights(2**32, 2**32 + 9, cpu), weights[:9])  # they go round


@on_each_device
@pytest.mark.parametrize("n", [1, 8191, 70_000, BIG])
def test_kernels_and_torch_agree_to_the_bit(n: int, device: str):
    x, y, k = normal(n, device), normal(n, device, seed=1), max(1, n // 100)
    if not backend.uses_triton(x):
        pytest.skip("Triton's kernels do not run here: they need a CUDA GPU, or Triton and TRITON_INTERPRET=1")
    estimate, own = y.clone(), y.clone()
    theirs = selection.select_in_torch(x, estimate, k, torch.float32)
    assert all(map(torch.equal, selection.step(x, own, k, torch.float32).nonzero(), theirs))
    assert torch.equal(own, estimate)
    blocks = selection.select_of_blocks_in_torch(x[: n // 96 * 96], 96, 2)
    assert torch.equal(selection.largest_of_blocks(x[: n // 96 * 96], 96, 2)[0], blocks)
    codes, scales = quantization.quantize(x, 127, 1000, 0)
    assert torch.equal(scales, quantization.quantize_in_torch(x, 127, 1000, 0)[1])
    decoded = quantization.dequantize_in_torch(codes, scales, 127, 1000)
    assert torch.equal(quantization.dequantize(codes, scales, 127, 1000), decoded)
    sent, coded = lattice.encode(x, 0.037, 8, with_points=True), lattice.encode_in_torch(x, 0.037, 8, with_points=True)
    assert torch.equal(sent.codes, coded.codes) and torch.equal(sent.points, coded.points)
    assert (sent.check, sent.is_in_range) == (coded.check, coded.is_in_range)
    mine, theirs = (
        lattice.decode(coded.codes, y, 0.037, 8, torch.float32),
        lattice.decode_in_torch(coded.codes, y, 0.037, 8),
    )
    assert torch.equal(mine.x, theirs.x) and mine[1:] == theirs[1:]


@on_each_device
def test_empty_vectors(device: str):
    none = torch.empty(0, device=device)
    assert [part.numel() for part in selection.step(none, none.clone(), 0, torch.float32).nonzero()] == [0, 0]
    assert [part.numel() for part in selection.largest_of_blocks(none, 1, 1)] == [0, 0, 0]
    codes, scales = quantization.quantize(none, 127, 16, 0)
    assert quantization.dequantize(codes, scales, 127, 16).numel() == codes.numel() == scales.numel() == 0
    sent = lattice.encode(none, 1.0, 8)
    assert lattice.decode(sent.codes, none, 1.0, 8, torch.float32).check == sent.check == 0


def test_triton_is_imported_by_its_own_files_alone_and_those_only_when_called():
    for path in Path(backend.__file__).parent.glob("*.py"):
        if path.stem.startswith("triton_"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not any(name.startswith("triton") for name in [*names, getattr(node, "module", None) or ""]), path
