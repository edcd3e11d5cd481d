"""Read messages from untrusted bytes: parse the signature, check types and lengths, construct the fields.

``messages`` describes the layout. What follows from a signature is computed once and cached as a ``Plan``. Nothing is
unpickled or executed, and every length is checked against the received bytes before anything is allocated.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_args, get_origin, get_type_hints

from tacit.core.message_fields import Field, Inner, Nestable, Part, parse
from tacit.core.message_kinds import IN_USE
from tacit.errors import BadMessage

if TYPE_CHECKING:
    from tacit.core.messages import Message

MAGIC: Final = b"tc"
VERSION: Final = 3
HEADER: Final = Struct("<2sBHQI")
CHECKSUM: Final = Struct("<I")
_BEGIN: Final = Struct("<2sBH")
_NO_FRAMES: Final[Iterator[memoryview]] = iter(())
_MAX_PLANS: Final = 1024
_MAX_SIGNATURES_BYTES: Final = 2**18
"""Limits of the cache of plans: number and total length of signatures, so that forged ones cannot fill the memory."""
_MAX_SIGNATURE_BYTES: Final = 2**16 - 1


def unpack(packed: bytes) -> Message:
    """Return the message in ``packed``, or raise ``BadMessage``. Executes nothing and makes no large allocation."""
    if len(packed) >= HEADER.size:
        magic, _, length, body_bytes, checksum = HEADER.unpack_from(packed)
        announced = HEADER.size + length + body_bytes
        if magic == MAGIC and len(packed) != announced:
            raise BadMessage(f"{len(packed)} bytes came where the header announces {announced}.")
        if zlib.crc32(memoryview(packed)[HEADER.size :]) != checksum:
            raise BadMessage("the checksum does not match.")
    return unpack_frames(packed)


def unpack_frames(head: bytes, at: int = 0, rest: Iterator[memoryview] = _NO_FRAMES) -> Message:
    """Return the message that begins at ``at`` in its first frame, or raise ``BadMessage``.

    The checksum is not verified: the transport does that. Further frames are taken from ``rest`` as needed; a large
    frame must begin at an address aligned for tensors. A large tensor that fills a writable frame uses the memory of
    that frame and keeps it alive; every other tensor is a copy. In both cases the caller owns the tensor.
    """
    try:
        magic, version, length, body_bytes, _ = HEADER.unpack_from(head, at)
    except struct.error:
        raise BadMessage(f"{len(head) - at} bytes are shorter than a header of {HEADER.size}.") from None
    if magic != MAGIC or version != VERSION:
        raise BadMessage(f"header {magic!r} version {version} is not {MAGIC!r} version {VERSION}.")
    begin = at + HEADER.size
    end = begin + length
    signature = head[begin:end]
    plan = IN_USE.plans.get(signature) or plan_of(signature)
    return plan.read(head, end, end + body_bytes, rest)


def make_message(kind: type[Message], values: Iterable[Any]) -> Message:
    """Construct a message; raise ``BadMessage`` if the checks of its class refuse the values."""
    try:
        return kind(*values)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"fields that make no {kind.__name__}: {error}") from None


class Plan:
    """What follows from a signature: how to pack the head of a message, and how to read the message."""

    def __init__(self, signature: bytes, shape: Shape, fields: Sequence[Field]) -> None:
        self.kind, self.fields = shape.kind, tuple((one.numbers_count, one.item_bytes, one.make) for one in fields)
        self.shape = None if all(part is _PLAIN for part in shape.parts) else shape
        numbers = "".join(field.numbers for field in fields)
        self.numbers = Struct(f"<{numbers}")
        self.begin, self.end = _BEGIN.pack(MAGIC, VERSION, len(signature)), bytes(4) + signature
        self.pack = Struct(f"<{len(self.begin)}sQ{len(self.end)}s{numbers}").pack
        self.numbers_bytes = self.numbers.size

    def read(self, head: bytes, at: int, end: int, rest: Iterator[memoryview]) -> Message:
        """Return the message whose numbers begin at ``at`` in its first frame; its frames have ``end`` bytes in all.

        Every length is checked against the received bytes before a field is made. The content of a field never
        continues in another frame, so frames are never joined.
        """
        try:
            numbers = self.numbers.unpack_from(head, at)
        except struct.error:
            raise BadMessage(f"a first frame of {len(head)} bytes ends before its numbers do.") from None
        frame, at = memoryview(head), at + self.numbers_bytes
        came = size = len(frame)
        values, taken = [], 0
        for count, item_bytes, make in self.fields:
            sizes = numbers[taken : taken + count]
            taken += count
            if not item_bytes:
                values.append(sizes[0])
                continue
            until = at + (sizes[0] if count == 1 else math.prod(sizes)) * item_bytes
            if at == size < until and (following := next(rest, None)) is not None:
                frame, until, at = following, until - at, 0
                size = len(frame)
                came += size
            if until > size:
                raise BadMessage(f"a field of {until - at} bytes does not fit into the {size - at} that are left.")
            values.append(make(frame[at:until], sizes, at == 0 and until == size))
            at = until
        if came != end or at != size:
            raise BadMessage(f"{came} bytes came where the header announces {end}, the last {size - at} for no field.")
        if self.shape is not None:
            return _assemble(self.shape, iter(values))
        try:
            return self.kind(*values)
        except (TypeError, ValueError) as error:  # ``make_message`` inlined: most messages hold no other messages
            raise BadMessage(f"fields that make no {self.kind.__name__}: {error}") from None


class Shape(NamedTuple):
    """How to assemble a message from the values of plain fields.

    A part is ``_PLAIN`` for a plain field, a shape for a message, a list of shapes for several, None for None.
    """

    kind: type[Message]
    parts: list[Any]


_PLAIN: Final = object()


def _assemble(shape: Shape, values: Iterator[Any]) -> Message:
    """Return the message of that ``shape``; ``values``: all plain fields in order, inner messages included."""
    found: list[Any] = []
    for part in shape.parts:
        if isinstance(part, Shape):
            found.append(_assemble(part, values))
        elif isinstance(part, list):
            found.append(tuple([_assemble(one, values) for one in part]))
        else:
            found.append(next(values) if part is _PLAIN else None)
    return make_message(shape.kind, found)


def plan_of(signature: bytes) -> Plan:
    """Return and cache the plan of a signature that is not in the cache, or raise ``BadMessage``."""
    if len(signature) > _MAX_SIGNATURE_BYTES:
        raise BadMessage(
            f"a signature of {len(signature)} bytes is longer than {_MAX_SIGNATURE_BYTES}; send fewer messages in one."
        )
    fields: list[Field] = []
    shape = _shape_of(parse(signature), None, fields)
    plans = IN_USE.plans
    if len(plans) >= _MAX_PLANS or sum(map(len, tuple(plans))) > _MAX_SIGNATURES_BYTES:
        plans.clear()
    plan = plans[signature] = Plan(signature, shape, fields)
    return plan


def _shape_of(message: Inner, wanted: type[Message] | None, fields: list[Field]) -> Shape:
    """Return how the message is assembled, and add its plain fields to ``fields``.

    Prefer the class ``wanted`` if it has the kind of the message.
    """
    kind = wanted if wanted is not None and wanted._name == message.name else IN_USE.kinds.find(message.name)
    if kind is None:
        raise BadMessage(f"unknown kind {message.name!r}.")
    types, parts = _types_of(kind), list[Any]()
    if len(message.parts) != len(types):
        raise BadMessage(f"{len(message.parts)} fields make no {kind.__name__}.")
    for part, (name, allowed) in zip(message.parts, types.items(), strict=True):
        parts.append(_part_of(part, allowed, f"the {name} of a {kind.__name__}", fields))
    return Shape(kind, parts)


def _part_of(part: Part, allowed: Sequence[Any], what: str, fields: list[Field]) -> object:
    """Return the shape of one field; raise ``BadMessage`` if ``allowed``, types and tuples of one, excludes it."""
    match part:
        case Inner():
            return _inner_of(part, allowed, what, fields)
        case list():
            items = [item for one in allowed if get_origin(one) is tuple for item in get_args(one)[:1]]
            if not items and not {object, tuple}.intersection(allowed):
                raise BadMessage(f"a tuple came as {what}.")
            return [_inner_of(one, items or [object], what, fields) for one in part]
        case Field():
            fields.append(part)
            given, shape = part.value_type, _PLAIN
        case None:
            given, shape = type(None), None
    if not any(isinstance(one, type) and issubclass(given, one) for one in allowed):
        raise BadMessage(f"a {given.__name__} came as {what}.")
    return shape


def _inner_of(part: Inner, allowed: Sequence[Any], what: str, fields: list[Field]) -> Shape:
    """Return the shape of a message inside another one; raise ``BadMessage`` if ``allowed`` excludes its kind."""
    kinds = [cast("type[Message]", one) for one in allowed if isinstance(one, type) and issubclass(one, Nestable)]
    own = next((one for one in kinds if one._name == part.name), None)
    shape = _shape_of(part, own, fields)
    if object not in allowed and not any(one.kind in shape.kind._lineage for one in kinds):
        raise BadMessage(f"a {shape.kind.__name__} came as {what}.")
    return shape


def _types_of(kind: type[Message]) -> dict[str, tuple[Any, ...]]:
    """Return the allowed types of each field.

    An integer is allowed for a float. A type hint that is not a plain type allows everything.
    """
    try:
        hints = get_type_hints(kind)
    except NameError:  # a class that was defined inside a function
        hints = {}
    return {field.name: _plain_types(hints.get(field.name, object)) for field in dataclasses.fields(kind)}


def _plain_types(hint: Any) -> tuple[Any, ...]:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if not all(isinstance(one, type) or (get_origin(one) is tuple and len(get_args(one)) == 2) for one in members):
        return (object,)
    return (*members, int) if float in members else members
