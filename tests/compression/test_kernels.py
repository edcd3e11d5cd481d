"""The fused inner loops against brute force. With Triton installed, TRITON_INTERPRET=1 sends the CPU's tests through the kernels as well."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.compression import fused
from tacit.compression.fused import backend, lattice, quantization, selection

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; none is here")
    ),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
BIG = selection.WORTH_SAMPLING + 12345  # long enough to be sampled, and no multiple of anything


def normal(n: int, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(device)


def brute_force(x: Tensor, k: int) -> Tensor:
    """Positions of the k largest magnitudes by a stable sort: ties to the lower position, NaN above all."""
    keys = x.cpu().abs().nan_to_num(nan=math.inf, posinf=torch.finfo(x.dtype).max)
    return keys.sort(descending=True, stable=True).indices[:k].sort().values


def assert_selected(x: Tensor, k: int) -> None:
    positions, values = fused.select_largest(x, k)
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
    "normal", "all equal", "all zero", "mostly zero", "two values", "sorted", "large ones side by side", "heavy tail", "subnormal",
    "hidden from the sample",
]  # fmt: skip


@on_each_device
@pytest.mark.parametrize("name", TRICKY)
def test_selection_is_exact_whatever_the_sample_says(name: str, device: str):
    x = tricky(name).to(device)
    for k in (1, BIG // 100, BIG // 9):
        assert_selected(x, k)


@on_each_device
@pytest.mark.parametrize("n", [1000, BIG])
def test_an_ef21_step_is_top_k_of_the_difference(n: int, device: str):
    gradient, estimate, k = normal(n, device), normal(n, device, seed=1), n // 100
    places, values = fused.select_largest(gradient - estimate, k)
    expected = estimate.clone()
    expected[places] += values
    positions, sent = fused.ef21_select(gradient, estimate, k)
    assert torch.equal(positions, places) and torch.equal(sent, values)
    assert torch.equal(estimate, expected)


@on_each_device
@pytest.mark.parametrize("n", [1000, BIG])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_selected_and_never_enters_the_estimate(n: int, poison: float, device: str):
    gradient, estimate = normal(n, device), normal(n, device, seed=1)
    gradient[n // 3] = poison
    before = estimate.clone()
    positions, values = fused.ef21_select(gradient, estimate, 5)
    assert not values[positions == n // 3].isfinite().any()
    assert torch.equal(estimate, before)
    assert not fused.select_largest(gradient, 1)[1].isfinite().any()


def test_selection_in_other_dtypes_takes_the_torch_path():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert_selected(normal(5000).to(dtype), 50)


@pytest.mark.parametrize("k", [-1, 11])
def test_k_must_fit_the_vector(k: int):
    with pytest.raises(ValueError, match=f"k={k} must be between 0 and the number of coordinates, 10"):
        fused.select_largest(torch.zeros(10), k)


def test_tensors_must_be_flat_and_agree():
    with pytest.raises(ValueError, match=r"pass x.contiguous\(\).view\(-1\)"):
        fused.select_largest(torch.zeros(4, 4), 1)
    with pytest.raises(ValueError, match="they must agree"):
        fused.ef21_select(torch.zeros(4), torch.zeros(5), 1)


@on_each_device
@pytest.mark.parametrize(
    ("bits", "bucket", "n"), [(8, 1024, 5000), (4, 100, 1050), (2, 3, 10), (8, 1, 7), (8, 20000, 30000)]
)
def test_qsgd_is_off_by_less_than_a_level(bits: int, bucket: int, n: int, device: str):
    x, levels = normal(n, device), 2 ** (bits - 1) - 1
    codes, norms = fused.qsgd_encode(x, bits, bucket, 3)
    assert codes.dtype == torch.uint8 and int(codes.view(torch.int8).abs().max()) <= levels
    for number, norm in enumerate(norms):
        assert norm == x[number * bucket : (number + 1) * bucket].abs().max()
    decoded = fused.qsgd_decode(codes, norms, bits, bucket)
    unit = norms.repeat_interleave(bucket)[:n] / levels
    assert bool(((decoded - x).abs() < unit * (1 + 1e-5)).all())


@on_each_device
def test_qsgd_is_unbiased(device: str):
    x, repetitions, levels = normal(64, device), 4096, 127
    many = x.repeat(repetitions)  # each copy has its own bucket and its own coins
    decoded = fused.qsgd_decode(*fused.qsgd_encode(many, 8, 64, 5), 8, 64).view(repetitions, 64).double()
    unit = float(x.abs().max()) / levels
    share = (x.double() / unit) % 1
    deviation = unit * (share * (1 - share)).sqrt()
    assert bool(((decoded.mean(0) - x).abs() <= 5 * deviation / math.sqrt(repetitions) + 1e-4 * unit).all())
    spread = decoded.var(0).sqrt()
    assert torch.allclose(spread, deviation, atol=0.05 * unit)  # the law itself: a coin with that probability
    shuffled = decoded - x
    assert abs(float((shuffled[:, 0] * shuffled[:, 1]).mean())) < 5 * unit**2 / 4 / math.sqrt(repetitions)


@on_each_device
def test_qsgd_keeps_what_needs_no_rounding(device: str):
    x = torch.tensor([127.0, -127.0, 0.0, 5.0, -64.0, 0.0, 0.0, 0.0], device=device)
    codes, norms = fused.qsgd_encode(x, 8, 5, 0)
    assert codes.view(torch.int8).tolist() == x.tolist() and norms.tolist() == [127.0, 0.0]
    assert torch.equal(fused.qsgd_decode(codes, norms, 8, 5), x)
    tiny = torch.tensor([1e-42, -1e-42, 0.0], device=device)
    assert fused.qsgd_encode(tiny, 8, 3, 0)[0].view(torch.int8).tolist() == [127, -127, 0]


@on_each_device
def test_qsgd_follows_its_seed(device: str):
    x = normal(10_000, device)
    first, again, other = (fused.qsgd_encode(x, 8, 512, seed)[0] for seed in (1, 1, 2**40))
    assert torch.equal(first, again) and not torch.equal(first, other)


@on_each_device
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_qsgd_shows_what_is_not_finite_in_the_norm(poison: float, device: str):
    x = normal(300, device)
    x[150] = poison
    assert fused.qsgd_encode(x, 8, 100, 0)[1].isfinite().tolist() == [True, False, True]


def test_qsgd_names_what_does_not_fit():
    with pytest.raises(ValueError, match="bits=9 must be between 2 and 8"):
        fused.qsgd_encode(torch.zeros(4), 9, 4, 0)
    with pytest.raises(ValueError, match="bucket=0 must be at least 1"):
        fused.qsgd_encode(torch.zeros(4), 8, 0, 0)
    with pytest.raises(ValueError, match="one norm for each bucket"):
        fused.qsgd_decode(torch.zeros(4, dtype=torch.uint8), torch.zeros(2), 8, 4)


@on_each_device
@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("n", [1, 1000, 100_000])
def test_the_lattice_brings_back_the_nearest_point(n: int, bits: int, device: str):
    side, q = 0.01, 2**bits
    x = normal(n, device)
    y = x + (torch.rand(n, generator=torch.Generator().manual_seed(1)).to(device) - 0.5) * (side * (q - 1) * 0.999)
    sent = fused.lattice_encode(x, side, bits)
    assert sent.codes.dtype == torch.uint8 and sent.is_in_range and int(sent.codes.max()) < q
    z, has_overflowed = fused.lattice_decode(sent.codes, y, side, bits, sent.check)
    assert not has_overflowed
    assert torch.equal(z, (x * (1 / side)).round() * side)
    assert bool(((z - x).abs() <= side / 2 + 1e-6).all())


@on_each_device
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_an_overflow_is_told_at_the_very_edge(bits: int, device: str):
    side, q = 0.25, 2**bits  # powers of two: every number below is exact
    x = (normal(10_000, device) * 40).round() * side
    sent = fused.lattice_encode(x, side, bits)
    for coordinate in (0, 1234, 9999):
        for sign in (1, -1):
            y = x.clone()
            y[coordinate] += sign * side * (q / 2 - 1 / 16)
            z, has_overflowed = fused.lattice_decode(sent.codes, y, side, bits, sent.check)
            assert not has_overflowed and torch.equal(z, x)
            y[coordinate] += sign * side / 8
            z, has_overflowed = fused.lattice_decode(sent.codes, y, side, bits, sent.check)
            assert has_overflowed and z[coordinate] - x[coordinate] == sign * q * side


@on_each_device
def test_overflows_that_cancel_in_a_plain_sum_are_told(device: str):
    x, side = normal(4096, device), 2.0**-6
    sent = fused.lattice_encode(x, side, 8)
    for pattern in ((1, -1), (1, -2, 1), (1, 1, -1, -1), (1, -3, 3, -1)):
        for begin in (0, 100, 4000):
            y = x.clone()
            y[begin : begin + len(pattern)] += torch.tensor(pattern, device=device) * (256 * side)
            assert fused.lattice_decode(sent.codes, y, side, 8, sent.check)[1]


@on_each_device
@pytest.mark.parametrize("poison", [math.nan, math.inf, -3e9])
def test_the_lattice_tells_what_lies_outside_its_range(poison: float, device: str):
    x = normal(100, device)
    x[50] = poison
    assert not fused.lattice_encode(x, 1.0, 8).is_in_range
    x[50] = 2.0e9
    sent = fused.lattice_encode(x, 1.0, 8)
    assert sent.is_in_range
    assert torch.equal(fused.lattice_decode(sent.codes, x, 1.0, 8, sent.check)[0], x.round())


def test_the_lattice_in_float64():
    x = normal(1000).double()
    sent = fused.lattice_encode(x, 1e-6, 8)
    z, has_overflowed = fused.lattice_decode(sent.codes, x + 1e-4, 1e-6, 8, sent.check)
    assert not has_overflowed and z.dtype == torch.float64 and float((z - x).abs().max()) <= 0.5e-6 * (1 + 1e-9)


def test_the_lattice_names_what_does_not_fit():
    with pytest.raises(ValueError, match="bits=16 must be between 1 and 8"):
        fused.lattice_encode(torch.zeros(4), 1.0, 16)
    for side in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="must be positive"):
            fused.lattice_encode(torch.zeros(4), side, 8)
    with pytest.raises(ValueError, match="one for each coordinate"):
        fused.lattice_decode(
            torch.zeros(4, dtype=torch.uint8), torch.zeros(5), 1.0, 8, torch.zeros((), dtype=torch.int32)
        )


def test_the_weights_of_the_check_are_odd_and_differ():
    weights = lattice.weights(0, 2**20, torch.device("cpu"))
    assert bool((weights & 1 == 1).all()) and weights.unique().numel() > 0.999 * 2**20
    assert torch.equal(weights[5000:6000], lattice.weights(5000, 6000, torch.device("cpu")))


@on_each_device
@pytest.mark.parametrize("n", [1, 8191, 70_000, BIG])
def test_kernels_and_references_agree_to_the_bit(n: int, device: str):
    x, y, k = normal(n, device), normal(n, device, seed=1), max(1, n // 100)
    if not backend.uses_triton(x):
        pytest.skip("Triton's kernels do not run here: they need a CUDA GPU, or Triton and TRITON_INTERPRET=1")
    estimate, own = y.clone(), y.clone()
    for mine, theirs in zip(fused.ef21_select(x, own, k), selection.select_reference(x, estimate, k), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(own, estimate)
    codes, norms = fused.qsgd_encode(x, 8, 1000, 0)
    assert torch.equal(norms, quantization.encode_reference(x, 127, 1000, 0)[1])
    assert torch.equal(fused.qsgd_decode(codes, norms, 8, 1000), quantization.decode_reference(codes, norms, 127, 1000))
    side, inverse = 0.037, 1 / 0.037
    sent = fused.lattice_encode(x, side, 8)
    for mine, theirs in zip(sent, lattice.encode_reference(x, inverse, 8), strict=True):
        assert torch.equal(mine, theirs)
    vector, check = lattice.decode_reference(sent.codes, y, side, inverse, 8)
    decoded, has_overflowed = fused.lattice_decode(sent.codes, y, side, 8, check)
    assert torch.equal(decoded, vector) and not has_overflowed


@on_each_device
def test_empty_vectors(device: str):
    none = torch.empty(0, device=device)
    assert [part.numel() for part in fused.ef21_select(none, none.clone(), 0)] == [0, 0]
    codes, norms = fused.qsgd_encode(none, 8, 16, 0)
    assert fused.qsgd_decode(codes, norms, 8, 16).numel() == codes.numel() == norms.numel() == 0
    sent = fused.lattice_encode(none, 1.0, 8)
    vector, has_overflowed = fused.lattice_decode(sent.codes, none, 1.0, 8, sent.check)
    assert vector.numel() == 0 and not has_overflowed


def test_triton_is_imported_by_its_own_files_alone_and_those_only_when_called():
    for path in Path(backend.__file__).parent.glob("*.py"):
        if path.stem.startswith("triton_"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not any(name.startswith("triton") for name in [*names, getattr(node, "module", None) or ""]), path
