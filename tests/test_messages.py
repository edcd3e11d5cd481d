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

from tacit.core.message_reading import VERSION, unpack, unpack_frames
from tacit.core.messages import Message, TensorMessage
from tacit.errors import BadMessage
from tacit.strategies.servers.messages import ServerPush


@dataclass(frozen=True)
class Everything(Message):
    tensor: Tensor
    count: int
    share: float
    is_last: bool
    name: str
    raw: bytes


@dataclass(frozen=True)
class Leaf(Message, wire="leaf"):
    tensor: Tensor
    name: str


@dataclass(frozen=True)
class Branch(Message, wire="branch"):
    weight: float
    body: Leaf | None
    rest: tuple[Message, ...] = ()
    last: int = 0


@dataclass(frozen=True)
class LeafOfAnotherKind(Leaf):
    pass


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
    Everything,
    tensors,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@given(messages)
@settings(deadline=None)
def test_a_message_survives_the_wire_and_knows_its_size(message: Everything):
    packed = message.pack()
    assert len(packed) == message.size_bytes
    back = unpack(packed)
    assert isinstance(back, Everything)
    assert torch.equal(back.tensor, message.tensor) and back.tensor.dtype == message.tensor.dtype
    assert (back.count, back.share, back.is_last, back.name, back.raw) == (
        message.count,
        message.share,
        message.is_last,
        message.name,
        message.raw,
    )
    assert back.pack() == packed


leaves = st.builds(Leaf, tensors, st.text(max_size=5))
branches = st.recursive(
    st.builds(Branch, st.floats(allow_nan=False), st.none() | leaves, st.just(())),
    lambda inner: st.builds(
        Branch,
        st.just(0.5),
        st.none() | leaves,
        st.lists(leaves | inner | messages, max_size=3).map(tuple),
        st.integers(0, 9),
    ),
    max_leaves=3,
)


def depth_of(message: Message) -> int:
    """Return how many messages lie one inside another in ``message``."""
    values = [one for value in vars(message).values() for one in (value if isinstance(value, tuple) else [value])]
    return max((1 + depth_of(one) for one in values if isinstance(one, Message)), default=0)


@given(branches.filter(lambda message: depth_of(message) <= 4))
@settings(deadline=None)
def test_messages_within_a_message_survive_the_wire_and_know_their_size(message: Branch):
    packed = message.pack()
    assert len(packed) == message.size_bytes
    back = unpack(packed)
    assert isinstance(back, Branch) and back.pack() == packed and depth_of(back) == depth_of(message)
    assert (back.weight, back.last, len(back.rest)) == (message.weight, message.last, len(message.rest))
    if message.body is not None:
        assert type(back.body) is Leaf and back.body.name == message.body.name
        assert torch.equal(back.body.tensor, message.body.tensor)
    for one, sent in zip(back.rest, message.rest, strict=True):
        assert type(one) is type(sent) and one.pack() == sent.pack()


@given(branches.filter(lambda message: depth_of(message) <= 4), st.data())
@settings(deadline=None)
def test_changed_messages_within_messages_do_no_harm(message: Branch, data: st.DataObject):
    """Even behind a checksum that is right: ``BadMessage``, or a message that packs to what came."""
    packed = bytearray(message.pack())
    place = data.draw(st.integers(17, len(packed) - 1))
    packed[place] = data.draw(st.integers(0, 255))
    (length,) = struct.unpack_from("<H", packed, 3)
    try:
        back = unpack(sealed(bytes(packed[17 : 17 + length]), bytes(packed[17 + length :])))
    except BadMessage:
        return
    assert back.size_bytes == len(back.pack()) == len(packed)


def test_messages_nest_up_to_four_deep():
    message = Branch(0.0, None)
    for _ in range(4):
        message = Branch(0.0, None, (message,))
    assert depth_of(unpack(message.pack())) == 4
    with pytest.raises(BadMessage, match="more than 4 deep"):
        Branch(0.0, None, (message,)).pack()


def test_a_message_of_a_kind_that_the_field_does_not_allow_is_refused():
    assert type(unpack(Branch(0.0, LeafOfAnotherKind(torch.ones(1), "x")).pack()).body) is LeafOfAnotherKind
    for body, came in ((TensorMessage(torch.ones(1)), "a TensorMessage"), (3, "a int"), ((), "a tuple")):
        with pytest.raises(BadMessage, match=f"{came} came as the body of a Branch"):
            unpack(Branch(0.0, body).pack())
    with pytest.raises(BadMessage, match="a NoneType came as the tensor of a TensorMessage"):
        unpack(TensorMessage(None).pack())
    with pytest.raises(TypeError, match="a message cannot hold a tuple with a int"):
        Branch(0.0, None, (3,)).pack()


def test_large_tensors_of_inner_messages_are_frames_of_their_own():
    large = torch.arange(50_000.0)
    message = Branch(1.0, Leaf(large, "x"), (Leaf(large + 1, "y"),)).owned()
    frames = message.frames()
    assert sum(map(len, frames)) == message.size_bytes == len(message.pack())
    own = [frame for frame in frames if len(frame) == large.nbytes]
    assert len(own) == 2
    large[0] = 7.0
    assert struct.unpack_from("<f", own[0])[0] == 7.0  # the tensor's own memory: nothing was copied
    copies = Branch(1.0, Leaf(large, "x")).frames()
    large[0] = 8.0
    assert struct.unpack_from("<f", next(f for f in copies if len(f) == large.nbytes))[0] == 7.0
    received = [memoryview(bytearray(frame)) for frame in frames]
    back = unpack_frames(bytes(received[0]), 0, iter(received[1:]))
    assert torch.equal(back.rest[0].tensor, torch.arange(50_000.0) + 1)


def test_a_snapshot_owns_the_tensors_of_inner_messages():
    tensor, kept = torch.zeros(3), Leaf(torch.zeros(3), "kept").owned()
    snapshot = Branch(1.0, Leaf(tensor, "x"), (Leaf(tensor, "y"), kept)).snapshot()
    tensor.fill_(1.0)
    assert snapshot.body.tensor.sum() == 0 and snapshot.rest[0].tensor.sum() == 0
    assert snapshot.rest[1] is kept


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
    return struct.pack("<2sBHQI", b"tc", VERSION, len(signature), len(body), crc) + signature + body


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
        (b"tensor}", b"", "unknown field type b'}'"),
        (b"tensor{", b"", "b'' came where b'}' ends a field"),
        (b"tensor{tensor[\0\1)", bytes(8), r"b'\)' came where b'}' ends a field"),
        (b"branch.~(~)#", bytes(16), r"b'~' came where b'\)' ends a field"),
        (b"branch.{nobody}()#", bytes(16), "unknown kind b'nobody'"),
        (
            b'branch.{leaf[\0\2"}()#',
            struct.pack("<d2QIq", 0, 2**30, 2**30, 0, 0),
            "does not fit into the 0 that are left",
        ),
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
    assert message.pack()[17:].startswith(b"lnc-1#") and b"LongName" not in message.pack()
    assert message.size_bytes == len(message.pack()) == 17 + len("lnc-1") + 9
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
        type(ServerPush.kind, (Message,), {"__module__": "there"})


def test_a_class_that_replaces_another_of_its_name_is_what_arrives():
    def define() -> type[Message]:
        @dataclass(frozen=True)
        class Reloaded(Message):
            number: int

        return Reloaded

    first = define()
    packed = first(3).pack()  # type: ignore[call-arg]
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
