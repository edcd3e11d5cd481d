"""Kinds know what their fields are: a stranger's message with something else in them is refused before anybody looks
into it.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import typing
import zlib
from collections.abc import Iterator

import pytest
from torch import Tensor

import tacit.runtime
import tacit.strategies  # noqa: F401 - all kinds exist
from tacit.compression import Compressed
from tacit.core.message_reading import MAGIC, VERSION, unpack
from tacit.core.messages import Message
from tacit.errors import BadMessage


def kinds_below(kind: type[Message]) -> Iterator[type[Message]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_below(one)


KINDS = sorted(
    {
        one
        for one in kinds_below(Message)
        if one.__module__.startswith("tacit.") and not one.__module__.startswith("tacit.testing")
    },
    key=lambda one: one.kind,
)


def sealed(signature: bytes, body: bytes = b"") -> bytes:
    """Return a message with a right header, whatever is in it."""
    crc = zlib.crc32(signature + body)
    return struct.pack("<2sBHQI", MAGIC, VERSION, len(signature), len(body), crc) + signature + body


def _members(hint: object) -> list[object]:
    """Return the types that a hint allows; a tuple of messages as a tuple."""
    is_tuple = typing.get_origin(hint) is tuple
    return [tuple] if is_tuple else [hint, *typing.get_args(hint)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_text_in_place_of_any_other_field_is_refused(kind: type[Message]):
    hints = typing.get_type_hints(kind)
    codes = {int: b"#", float: b".", bool: b"?", str: b'"', bytes: b"'", Tensor: b"[\0\1"}
    bodies = {int: bytes(8), float: bytes(8), bool: bytes(1), str: bytes(4), bytes: bytes(4), Tensor: bytes(8)}
    codes |= {type(None): b"~", tuple: b"()"}
    bodies |= {type(None): b"", tuple: b""}
    types = [hints[field.name] for field in dataclasses.fields(kind)]
    plain = [next(part for part in _members(one) if part in codes) for one in types]  # of Tensor | Said the tensor
    for place, own in enumerate(plain):
        if own is not str:
            foreign = [*plain[:place], str, *plain[place + 1 :]]
            signature = kind.kind.encode() + b"".join(codes[one] for one in foreign)
            with pytest.raises(BadMessage, match=f"a str came as the {dataclasses.fields(kind)[place].name} of a"):
                unpack(sealed(signature, b"".join(bodies[one] for one in foreign)))


def test_every_kind_of_ours_has_a_short_wire_name_of_its_own():
    names = [kind.kind for kind in KINDS]
    assert len(set(names)) == len(names) and all(re.fullmatch("[a-z0-9]{2,6}", name) for name in names), names


def test_a_float_may_come_as_an_integer():
    @dataclasses.dataclass(frozen=True)
    class Weighed(Message):
        weight: float

    assert unpack(Weighed(2).pack()) == Weighed(2)


def test_a_kind_made_within_a_function_travels_though_its_types_are_unknown():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        number: int

    @dataclasses.dataclass(frozen=True)
    class Outer(Message):
        inner: Inner | int  # type: ignore[name-defined] # unresolvable from outside

    assert unpack(Outer(3).pack()) == Outer(3)


def test_a_compressed_vector_of_no_kind_is_refused():
    with pytest.raises(BadMessage, match="a Compressed holds no vector"):
        unpack(sealed(Compressed.kind.encode()))
