"""The lattice: what decodes against what, and how a reference too far away is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.compression import Lattice, LatticeVector
from tacit.errors import LatticeOverflow


def _sent(x: list[float], **options: object) -> LatticeVector:
    return Lattice(**options).compress(torch.tensor(x), np.random.default_rng(0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "reference", "decoded"),
    [  # side 1, four bits: sixteen classes, radius 7.5
        (0.0, 0.0, 0.0),
        (0.4, 0.0, 0.0),
        (0.6, 0.0, 1.0),
        (-0.6, 0.0, -1.0),
        (100.2, 97.0, 100.0),
        (100.2, 107.0, 100.0),
        (-100.2, -93.5, -100.0),
        (7.0, 0.0, 7.0),
        (-7.0, 0.0, -7.0),
        (1e6, 1e6 + 7.0, 1e6),
        (9.0, 0.0, None),  # would decode to −7
        (-9.0, 0.0, None),
        (100.0, 0.0, None),
        (16.0, 0.0, None),  # the very class of 0
        (0.0, 1e30, None),
    ],
)
def test_the_table_of_decodings(x: float, reference: float, decoded: float | None):
    message = _sent([x], bits=4, side=1.0)
    assert message.radius == 7.5
    if decoded is None:
        with pytest.raises(LatticeOverflow, match="farther than radius=7.5 from the sent vector") as raised:
            message.dense(torch.tensor([reference]))
        assert (raised.value.radius, raised.value.side) == (7.5, 1.0)
    else:
        assert message.dense(torch.tensor([reference])).tolist() == [decoded]


@given(
    x=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30),
    bits=st.integers(2, 16),
    side=st.floats(0.01, 10),
    stochastic=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_every_reference_within_the_radius_decodes_to_the_same(x, bits: int, side: float, stochastic: bool, seed: int):
    lattice = Lattice(bits=bits, side=side, stochastic=stochastic)
    sent = torch.tensor(x, dtype=torch.float64)
    message = lattice.compress(sent, np.random.default_rng(seed))
    away = torch.rand(len(x), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    decoded = message.dense(sent + 0.999 * lattice.radius(side) * away)
    assert torch.equal(decoded, message.dense(sent))
    assert bool(((decoded - sent).abs() <= side * (1 if stochastic else 0.5) * (1 + 1e-6)).all())


@given(
    x=st.lists(st.floats(-1e4, 1e4, width=16), max_size=30),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    bits=st.integers(2, 16),
    side=st.one_of(st.none(), st.floats(0.1, 10)),
    stochastic=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_the_senders_points_are_to_the_bit_what_every_receiver_decodes(x, dtype, bits, side, stochastic, seed):
    """The sign of a zero included: what follows from the points is the same on both sides of a link."""
    lattice = Lattice(bits=bits, side=side, stochastic=stochastic)
    sent = torch.tensor(x, dtype=dtype)
    message, points = lattice.compress_with_points(sent, np.random.default_rng(seed))
    plain = lattice.compress(sent, np.random.default_rng(seed))
    assert plain.pack() == message.pack()
    assert points.dtype == dtype
    away = torch.rand(len(x), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    near = (sent.to(torch.float64) + 0.9 * message.radius * away).to(wide)
    for reference in (sent, near):
        assert _bits(message.dense(reference)) == _bits(points)


def _bits(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).tolist())


def test_points_of_vectors_of_many_pieces_and_of_far_references():
    """Pieces of 2¹⁶ numbers each; and a distance that is told counts instead of what is remembered."""
    x = torch.randn(150_000, generator=torch.Generator().manual_seed(0))
    message, points = Lattice(bits=5).compress_with_points(
        x, np.random.default_rng(0), {"distance": torch.tensor(9.0)}, far=0.5
    )
    assert message.radius == pytest.approx(0.5)
    assert _bits(message.dense(x + 0.49)) == _bits(points)
    assert float((points - x).abs().max()) <= message.side * 0.501


@given(
    overflows=st.lists(
        st.tuples(st.integers(0, 199), st.integers(-3, 3).filter(bool)),
        min_size=1,
        max_size=8,
        unique_by=lambda o: o[0],
    )
)
@settings(deadline=None, max_examples=300)
def test_any_set_of_overflows_is_detected(overflows: list[tuple[int, int]]):
    """Such as +1 and −1 side by side, which a plain sum would miss."""
    x = torch.linspace(-50, 50, 200)
    message = Lattice(bits=4, side=0.5).compress(x, np.random.default_rng(0))
    reference = x.clone()
    for place, turns in overflows:
        reference[place] += turns * 8.0  # q s
    with pytest.raises(LatticeOverflow):
        message.dense(reference)


@pytest.mark.parametrize("far", [float("nan"), float("inf"), -1e30, 1e38])
@pytest.mark.parametrize("count", [1, 2, 4, 64])
def test_a_reference_that_has_run_away_is_detected(far: float, count: int):
    """Numbers that far are multiples of large powers of two, which a sum modulo 2⁶⁴ could lose."""
    x = torch.linspace(-1, 1, 200)
    reference = x.clone()
    reference[:count] = far
    with pytest.raises(LatticeOverflow):
        Lattice(bits=8, side=0.5).compress(x, np.random.default_rng(0)).dense(reference)


def test_the_error_depends_on_the_distance_and_not_on_the_size():
    lattice, memory = Lattice(bits=8), {}
    x = 1e3 + torch.randn(1000, generator=torch.Generator().manual_seed(0))
    reference = x + 0.01 * torch.randn(1000, generator=torch.Generator().manual_seed(1))
    coarse = lattice.compress(x, np.random.default_rng(0), memory)
    lattice.observe(memory, float((coarse.dense(reference) - reference).abs().max()))
    lattice.observe(memory, 0.05)
    for _ in range(60):  # a forgetful memory: the first, coarse distance fades
        lattice.observe(memory, 0.05)
    fine = lattice.compress(x, np.random.default_rng(0), memory)
    assert fine.side < coarse.side / 50
    assert float((fine.dense(reference) - x).abs().max()) <= fine.side * 0.51 + 1e-4
    assert fine.size_bytes == coarse.size_bytes


def test_eight_bits_take_one_byte_a_number():
    assert _sent([0.0] * 1000, side=1.0).size_bytes - _sent([0.0] * 500, side=1.0).size_bytes == 500


def test_a_missing_or_wrong_reference_is_told():
    message = _sent([1.0, 2.0], side=1.0)
    with pytest.raises(ValueError, match="decoded against a vector near the one that was sent"):
        message.dense()
    with pytest.raises(ValueError, match="reference holds 3 numbers and must hold 2"):
        message.dense(torch.zeros(3))


def test_stochastic_rounding_is_unbiased():
    x = torch.tensor([0.3, -1.7, 2.5], dtype=torch.float64)
    lattice = Lattice(bits=8, side=1.0, stochastic=True)
    random = np.random.default_rng(0)
    mean = torch.stack([lattice.compress(x, random).dense(x) for _ in range(4000)]).mean(0)
    assert torch.allclose(mean, x, atol=0.05)
