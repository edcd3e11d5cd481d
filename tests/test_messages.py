"""Messages: packed and unpacked, exactly as large as they say, and deaf to bytes that are not theirs."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import BadMessage
from tacit.messages import VERSION, Message, TensorMessage, unpack
from tacit.strategies.servers import messages as _  # noqa: F401 - the kind "push" exists


@dataclass(frozen=True)
class Everything(Message):
    tensor: Tensor
    count: int
    share: float
    is_last: bool
    name: str
    raw: bytes


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
tensors = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)).map(
    lambda drawn: torch.randint(0, 2, drawn[1]).to(drawn[0])
)
messages = st.builds(
    Everything, tensors, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.text(max_size=20), st.binary(max_size=20)
)  # fmt: skip


@given(messages)
@settings(deadline=None)
def test_a_message_survives_the_wire_and_knows_its_size(message: Everything):
    packed = message.pack()
    assert len(packed) == message.size_bytes
    back = unpack(packed)
    assert isinstance(back, Everything)
    assert torch.equal(back.tensor, message.tensor) and back.tensor.dtype == message.tensor.dtype
    assert (back.count, back.share, back.is_last, back.name, back.raw) == (
        message.count, message.share, message.is_last, message.name, message.raw
    )  # fmt: skip
    assert back.pack() == packed


@given(st.binary(max_size=200))
@example(b"")
@example(b"tc\x01")
def test_bytes_that_are_no_message_are_refused(junk: bytes):
    with pytest.raises(BadMessage):
        unpack(junk)


@given(message=messages, data=st.data())
@settings(deadline=None)
def test_a_changed_message_is_refused(message: Everything, data: st.DataObject):
    packed = bytearray(message.pack())
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadMessage):
        unpack(bytes(packed))


def test_a_truncated_message_says_how_much_came():
    packed = TensorMessage(torch.arange(5)).pack()
    with pytest.raises(BadMessage, match=rf"{len(packed) - 1} bytes came where the header announces {len(packed)}"):
        unpack(packed[:-1])


def sealed(signature: bytes, body: bytes) -> bytes:
    """Return a message of that signature and body with a header that is right about both."""
    crc = zlib.crc32(signature + body)
    return struct.pack("<2sBBQI", b"tc", VERSION, len(signature), len(body), crc) + signature + body


def test_lengths_are_checked_before_anything_is_made():
    """A hostile tensor of 2⁶⁰ elements behind a valid checksum is refused without allocating it."""
    packed = sealed(b"tensor[\0\2", struct.pack("<2Q", 2**30, 2**30))
    with pytest.raises(BadMessage, match="does not fit into the 0 that are left"):
        unpack(packed)


def test_an_empty_tensor_of_large_sizes_is_refused():
    """Found by fuzz/wire.py: torch overflows on the product of such sizes although one of them is zero."""
    packed = sealed(b"tensor[\0\5", struct.pack("<5Q", *[2**30] * 4, 0))
    with pytest.raises(BadMessage, match="an empty tensor of sizes"):
        unpack(packed)


@pytest.mark.parametrize(
    ("signature", "body", "text"),
    [
        (b"tensor", b"", "0 fields make no TensorMessage"),
        (b"tensor##", bytes(16), "2 fields make no TensorMessage"),
        (b"tensor[\0\x09", bytes(72), "unknown field type"),
        (b"tensor[\0", b"", "unknown field type"),
        (b"tensor!", b"", "unknown kind b'tensor!'"),
        (b"Nobody#", bytes(8), "unknown kind b'Nobody'"),
        (b"tensor[\0\1", bytes(7), "ends before its numbers do"),
        (b"tensor[\0\1", bytes(9), "the last 1 for no field"),
        (b"Everything[\0\0#.?\"'", bytes(25), "a field of 4 bytes does not fit into the 0"),
        (b"Everything[\0\0#.?\"'", bytes(17) + b"\2\0\0\0\0\0\0\0" + bytes(4) + b"\xff\xff", "text that is not UTF-8"),
    ],
)
def test_what_makes_no_message_is_refused_with_the_reason(signature: bytes, body: bytes, text: str):
    with pytest.raises(BadMessage, match=text):
        unpack(sealed(signature, body))


def test_a_snapshot_owns_its_tensors():
    tensor = torch.zeros(3)
    snapshot = TensorMessage(tensor).snapshot()
    tensor.fill_(1.0)
    assert snapshot.tensor.sum() == 0


def test_a_message_cannot_hold_just_anything():
    @dataclass(frozen=True)
    class Odd(Message):
        thing: object

    with pytest.raises(TypeError, match="a message cannot hold a dict; use tensors, numbers, text or bytes"):
        Odd({}).pack()
    with pytest.raises(TypeError, match="a message cannot hold a tensor of torch.complex64 with 1 dimensions"):
        Odd(torch.zeros(1, dtype=torch.complex64)).pack()


def test_two_kinds_of_one_name_are_refused():
    def define(module: str) -> None:
        type("Twin", (Message,), {"__module__": module})

    define("here")
    define("here")  # the same again, as a reloaded module makes it
    with pytest.raises(
        TypeError, match=r"there\.Twin has the wire name 'Twin', which here\.Twin uses already; pass another"
    ):
        define("there")


def test_a_wire_name_travels_in_place_of_the_class_name():
    @dataclass(frozen=True)
    class LongNameOfAClass(Message, wire="lnc-1"):
        number: int

    @dataclass(frozen=True)
    class DerivedFromIt(LongNameOfAClass):
        pass

    message = LongNameOfAClass(3)
    assert (message.kind, DerivedFromIt.kind) == ("lnc-1", "DerivedFromIt")
    assert message.pack()[16:].startswith(b"lnc-1#") and b"LongName" not in message.pack()
    assert message.size_bytes == len(message.pack()) == 16 + len("lnc-1") + 9
    assert type(unpack(message.pack())) is LongNameOfAClass
    assert DerivedFromIt(3).is_of(LongNameOfAClass) and not message.is_of(DerivedFromIt)
    with pytest.raises(BadMessage, match="1 fields make no TensorMessage|a int came as the tensor of a TensorMessage"):
        unpack(sealed(b"tensor#", bytes(8)))


@pytest.mark.parametrize("wire", ["", "a b", "a[b", "x#", "{x", "é", "x" * 33, b"x", 3])
def test_a_wire_name_that_cannot_travel_is_refused(wire: object):
    with pytest.raises(TypeError, match=r"wire=.* of Refused must be 1 to 32 letters, digits, _ or -"):
        type("Refused", (Message,), {"__module__": "here"}, wire=wire)


def test_two_classes_with_one_wire_name_are_refused():
    type("First", (Message,), {"__module__": "here"}, wire="shared")
    with pytest.raises(TypeError, match=r"here\.Second has the wire name 'shared', which here\.First uses already"):
        type("Second", (Message,), {"__module__": "here"}, wire="shared")
    with pytest.raises(TypeError, match=r"there\.push has the wire name 'push', which tacit\.strategies"):
        type("push", (Message,), {"__module__": "there"})


def test_a_class_that_replaces_another_of_its_name_is_what_arrives():
    def define() -> type[Message]:
        @dataclass(frozen=True)
        class Reloaded(Message):
            number: int

        return Reloaded

    first = define()
    packed = first(3).pack()
    assert type(unpack(packed)) is first
    second = define()
    assert type(unpack(packed)) is second


def test_a_value_of_a_derived_type_travels_as_what_it_descends_from():
    class Answer(IntEnum):
        YES = 1

    message = Everything(torch.nn.Parameter(torch.ones(2)), Answer.YES, np.float64(0.5), True, "x", b"y")
    back = unpack(message.pack())
    assert len(message.pack()) == message.size_bytes
    assert (type(back.count), back.count, type(back.share), back.share) == (int, 1, float, 0.5)
    assert torch.equal(back.tensor, message.tensor) and not back.tensor.requires_grad
