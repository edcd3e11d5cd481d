"""Compressed vectors from strangers: ``BadMessage`` or a valid message, never a crash and never a large allocation."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    LayerwiseVector,
    LowRank,
    RandomK,
    Sign,
    SparseVector,
    TopK,
)
from tacit.core.message_reading import VERSION, unpack
from tacit.core.messages import TensorMessage
from tacit.errors import BadMessage, LatticeOverflow

COMPRESSORS: list[Compressor] = [
    Dense(),
    BFloat16(),
    TopK(fraction=0.2),
    TopK(k=1),
    TopK(fraction=0.6),
    RandomK(k=3),
    BlockTopK(block=8, k=2),
    QSGD(bits=8),
    QSGD(bits=3, bucket=5),
    Sign(),
    LowRank(rank=1),
    Lattice(bits=4),
    Chain(TopK(fraction=0.2), QSGD(bits=4)),
    Chain(BlockTopK(block=8), Sign()),
    Layerwise(Sign(), exempt_below=20),
    Layerwise(Chain(TopK(k=3), QSGD(bits=4)), exempt_below=0),
    Layerwise(Lattice(bits=4), exempt_below=0),
]
D = 60
HEADER_BYTES = 17
SHAPES = (torch.Size((6, 8)), torch.Size((12,)))
X = torch.randn(D, generator=torch.Generator().manual_seed(0))


def _message(compressor: Compressor) -> Compressed:
    return compressor.compress(X, np.random.default_rng(0), {}, SHAPES)


def _sealed(packed: bytearray) -> bytes:
    """Return the bytes with lengths and checksum made right, as an attacker would."""
    (signature_length,) = struct.unpack_from("<H", packed, 3)
    struct.pack_into("<Q", packed, 5, max(0, len(packed) - HEADER_BYTES - signature_length))
    struct.pack_into("<I", packed, 13, zlib.crc32(packed[HEADER_BYTES:]))
    return bytes(packed)


def _is_harmless(packed: bytes) -> None:
    """Unpack and decode as a receiver does that expects D numbers."""
    try:
        message = unpack(packed)
        if isinstance(message, Compressed):
            decoded = message.of_length(D).dense(X)
            assert decoded.shape == (D,) and decoded.is_floating_point()
    except (BadMessage, LatticeOverflow):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=75)
def test_changed_bytes_behind_a_valid_checksum_do_no_harm(compressor: Compressor, data: st.DataObject):
    message = _message(compressor)
    packed, begin = bytearray(message.pack()), HEADER_BYTES + len(message.kind)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(begin, len(packed) - 1))
        match data.draw(st.sampled_from(["byte", "number", "cut", "insert"])):
            case "byte":
                packed[at] = data.draw(st.integers(0, 255))
            case "number":
                number = data.draw(st.sampled_from([0, 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1]))
                packed[at : at + 8] = struct.pack("<Q", number)[: len(packed[at : at + 8])]
            case "cut":
                del packed[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                packed[at:at] = data.draw(st.binary(max_size=9))
        if len(packed) <= begin:
            break
    _is_harmless(_sealed(packed))


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_a_truncated_or_changed_message_is_refused(compressor: Compressor, data: st.DataObject):
    packed = _message(compressor).pack()
    with pytest.raises(BadMessage):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    changed = bytearray(packed)
    changed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadMessage):
        unpack(bytes(changed))


KINDS = sorted({_message(compressor).kind for compressor in COMPRESSORS})
_ITEM = [4, 8, 2, 2, 8, 4, 2, 1, 1, 1]
fields = st.one_of(  # code, numbers, content
    st.integers(-2, 70).map(lambda n: (b"#", struct.pack("<q", n), b"")),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: (b"#", struct.pack("<q", n), b"")),
    st.floats().map(lambda n: (b".", struct.pack("<d", n), b"")),
    st.booleans().map(lambda n: (b"?", struct.pack("<B", n), b"")),
    st.sampled_from([b"float32", b"float64", b"x"]).map(lambda t: (b'"', struct.pack("<I", len(t)), t)),
    st.binary(max_size=30).map(lambda t: (b"'", struct.pack("<I", len(t)), t)),
    st.tuples(st.integers(0, 9), st.integers(0, 16), st.binary(min_size=128, max_size=128)).map(
        lambda t: (bytes((ord("["), t[0], 1)), struct.pack("<Q", t[1]), t[2][: t[1] * _ITEM[t[0]]])
    ),
    st.just((b"~", b"", b"")),
    st.sampled_from(
        [b"{dense[\0\1}", b"{sparse####[\x08\1[\0\1}", b"({dense[\0\1})", b"()", b"{", b"}", b"(", b")"]
    ).map(lambda code: (code, bytes(8 * (code.count(b"[") + code.count(b"#"))), b"")),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
        lambda s: (b"[\4\2", struct.pack("<QQ", *s), struct.pack(f"<{s[0] * s[1]}q", *range(s[0] * s[1])))
    ),
)


@pytest.mark.slow
@given(st.sampled_from(KINDS), st.lists(fields, max_size=8))
@settings(deadline=None, max_examples=750)
def test_messages_made_of_any_fields_do_no_harm(kind: str, values: list[tuple[bytes, bytes, bytes]]):
    codes, numbers, contents = (b"".join(parts) for parts in zip(*values, strict=True)) if values else (b"", b"", b"")
    packed = bytearray(HEADER_BYTES) + kind.encode() + codes + numbers + contents
    struct.pack_into("<2sBH", packed, 0, b"tc", VERSION, len(kind) + len(codes))
    _is_harmless(_sealed(packed))


@pytest.mark.parametrize("junk", [b"", b"values", None, 3])
def test_what_is_no_vector_is_refused_as_values(junk: object):
    with pytest.raises(ValueError, match="values is a .* and must be a tensor"):
        SparseVector(4, 4, 0, 0, torch.empty(0, dtype=torch.uint8), junk)


def test_a_message_within_a_message_within_a_message_is_refused():
    """Else a few kilobytes would exhaust the stack."""
    nothing = torch.empty(0, dtype=torch.uint8)
    held = SparseVector(4, 4, 0, 0, nothing, Dense().compress(torch.ones(4), np.random.default_rng(0)))
    assert held.dense().tolist() == [1.0] * 4
    message = unpack(SparseVector(4, 4, 0, 0, nothing, held).pack())
    assert isinstance(message, SparseVector)
    with pytest.raises(BadMessage, match="a SparseVector cannot hold the values of a SparseVector"):
        message.dense()
    code = b"####[\x08\1"
    for depth in (5, 2000):
        signature = b"{".join([b"sparse" + code] * depth) + b"{dense[\0\1}" + b"}" * (depth - 1)
        packed = bytearray(HEADER_BYTES) + signature + bytes(40 * depth + 8)
        struct.pack_into("<2sBH", packed, 0, b"tc", VERSION, len(signature))
        with pytest.raises(BadMessage, match="holds messages more than 4 deep"):
            unpack(_sealed(packed))


def test_segments_within_segments_are_refused():
    """Nor may what a segment holds hold segments again."""
    dense = Dense().compress(torch.ones(4), np.random.default_rng(0))

    def wrapped(*parts: Compressed) -> LayerwiseVector:
        return LayerwiseVector(torch.tensor([4]), torch.zeros(1, dtype=torch.bool), parts, torch.empty(0))

    assert wrapped(dense).dense().tolist() == unpack(wrapped(dense).pack()).dense().tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="a LayerwiseVector cannot be a segment of a LayerwiseVector"):
        wrapped(wrapped(dense))
    with pytest.raises(ValueError, match="2 parts came and 1 segments are not exact"):
        wrapped(dense, dense)
    inner = wrapped(dense)
    inner.__dict__["parts"] = (wrapped(dense),)  # what a sender of another version could make
    with pytest.raises(BadMessage, match="a LayerwiseVector cannot be a segment of a LayerwiseVector"):
        unpack(inner.pack())
    inner.__dict__["parts"] = (TensorMessage(torch.ones(4)),)
    with pytest.raises(BadMessage, match="a TensorMessage came as the parts of a LayerwiseVector"):
        unpack(inner.pack())
    held = SparseVector(4, 4, 0, 0, torch.empty(0, dtype=torch.uint8), wrapped(dense))
    with pytest.raises(BadMessage, match="a LayerwiseVector cannot hold the values of a SparseVector"):
        held.dense()


def test_a_lattice_vector_is_refused_where_there_is_no_reference():
    """Found by fuzz/wire.py: a server that decodes a compressed gradient has none."""
    for message in (_message(Lattice(bits=4)), _message(Layerwise(Lattice(bits=4), exempt_below=0))):
        with pytest.raises(BadMessage, match=f"a {type(message).__name__} needs a reference"):
            message.add_into(torch.zeros(D))
    held = SparseVector(60, 60, 0, 0, torch.empty(0, dtype=torch.uint8), _message(Lattice(bits=4)))
    with pytest.raises(BadMessage, match="a LatticeVector cannot hold the values of a SparseVector"):
        held.dense()


def test_a_few_bytes_that_stand_for_a_terabyte_are_refused_before_they_are_decoded():
    message = SparseVector(2**40, 1, 2, 0, torch.zeros(5, dtype=torch.uint8), torch.ones(1))
    assert message.size_bytes < 150
    with pytest.raises(BadMessage, match=f"a SparseVector of {2**40} numbers came where 60 were expected"):
        message.of_length(60)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_frames_carry_the_same_message(compressor: Compressor):
    message = _message(compressor)
    frames = message.frames()
    assert sum(map(len, frames)) == message.size_bytes
    assert b"".join(frames)[HEADER_BYTES:] == message.pack()[HEADER_BYTES:]  # all but the checksum
