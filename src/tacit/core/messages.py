"""Messages: frozen dataclasses that travel, pack to bytes without pickle, and know their exact size.

Layout of the packed bytes, little endian:

    magic «tc» · version u8 · signature length u16 · body length u64 · crc32 of signature and body u32 · signature ·
    body

The signature is the kind and what its fields are, the body their numbers and contents (see ``fields``). Messages of a
kind mostly have the same signature again and again, and what follows from it is remembered as a ``Plan``.

The kind is a short wire name, ``class Update(Message, wire="update")``, so that a class can be renamed without a change
of sizes, traces and digests. Without ``wire=`` it is the name of the class.

A field may hold a message, or a tuple of them: their codes, numbers and contents are part of the outer message's, under
one header and one checksum. What the field's type hint does not allow is refused on reading.

``pack`` makes these bytes in one piece. ``frames`` makes the same bytes in several, large tensors being pieces of their
own that are neither copied nor joined; there the checksum is 0, because TCP and CURVE check already and crc32 would
cost more than the transfer.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from types import UnionType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

from tacit.core.message_fields import ADD, INLINE_BYTES, Bytes, Field, Inner, Nestable, Part, add_of, parse, size_bytes
from tacit.errors import BadMessage

MAGIC: Final = b"tc"
VERSION: Final = 3
_HEADER: Final = Struct("<2sBHQI")
_BEGIN: Final = Struct("<2sBH")
_CHECKSUM: Final = Struct("<I")
_NOTHING: Final[Iterator[memoryview]] = iter(())
_WIRE: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_PLANS: Final = 1024
_SIGNATURES_BYTES: Final = 2**18
"""How many signatures are remembered, and how long they are together: made-up ones do not fill the memory."""
_LONGEST: Final = 2**16 - 1

MessageType = TypeVar("MessageType", bound="Message")


class Kinds:
    """The message classes of one worker, by kind.

    Each worker of a simulated script defines its own; all others share one.
    """

    def __init__(self) -> None:
        self.defined: dict[bytes, type[Message]] = {}
        self.plans: dict[bytes, Plan] = {}  # by signature, for these classes

    def find(self, name: bytes) -> type[Message] | None:
        """Return this worker's class of a kind, else the latest one that any worker defined."""
        return self.defined.get(name) or _latest.get(name)


_latest: dict[bytes, type[Message]] = {}
_in_use = Kinds()
_plans = _in_use.plans


def use_kinds(kinds: Kinds) -> None:
    """From now on define classes in ``kinds`` and read messages as its classes."""
    global _in_use, _plans
    _in_use, _plans = kinds, kinds.plans


def kinds_in_use() -> Kinds:
    """Return where classes are defined now."""
    return _in_use


def latest_kinds() -> dict[bytes, type[Message]]:
    """Return the latest class of each kind."""
    return dict(_latest)


def restore_latest_kinds(before: dict[bytes, type[Message]]) -> None:
    """Return to the classes of ``before``, but keep new ones of modules that are still loaded; ``__main__`` is a
    script's no longer.
    """
    for name, kind in latest_kinds().items():
        if kind is not before.get(name) and (kind.__module__ == "__main__" or kind.__module__ not in sys.modules):
            del _latest[name]
    _latest.update(before)


@dataclasses.dataclass(frozen=True)
class Message(Nestable):
    """Base class of messages. A subclass is a frozen dataclass whose fields are tensors, numbers, text or bytes,
    messages, tuples of messages, or None.

    The class argument ``wire=`` is the kind that travels and is written into traces; the class name by default.
    """

    kind: ClassVar[str] = ""
    _name: ClassVar[bytes] = b""  # the kind, as it travels
    _lineage: ClassVar[frozenset[str]] = frozenset({""})  # its own kind and those it derives from
    _field_names: ClassVar[tuple[str, ...] | None] = (
        None  # remembered: ``dataclasses.fields`` takes longer than a small message
    )

    def __init_subclass__(cls, wire: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if wire is not None and not (isinstance(wire, str) and _WIRE.fullmatch(wire)):
            raise TypeError(
                f'wire={wire!r} of {cls.__name__} must be 1 to 32 letters, digits, _ or -, such as wire="update".'
            )
        cls.kind = cls.__name__ if wire is None else wire
        cls._name, cls._field_names = cls.kind.encode(), None
        bases = [base._lineage for base in cls.__bases__ if issubclass(base, Message)]
        cls._lineage = frozenset({cls.kind}).union(*bases)
        known = _in_use.find(cls._name) or cls
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"{cls.__module__}.{cls.__name__} has the wire name {cls.kind!r}, which "
                f"{known.__module__}.{known.__name__} uses already; pass another one: class {cls.__name__}(Message, wire=…)."
            )
        _latest[cls._name] = _in_use.defined[cls._name] = cls
        _plans.clear()  # they may be of a class that this one replaces

    def pack(self) -> bytes:
        """Return the message as contiguous bytes."""
        packed = bytearray().join(self.frames(copies=False))
        _CHECKSUM.pack_into(packed, _HEADER.size - _CHECKSUM.size, zlib.crc32(memoryview(packed)[_HEADER.size :]))
        return bytes(packed)

    def frames(self, before: bytes = b"", before_several: bytes = b"", *, copies: bool = True) -> list[Bytes]:
        """Return the message as buffers, together ``size_bytes`` long, behind ``before``, or ``before_several`` if
        there are several.

        A large tensor is a frame of its own: a copy, or its very memory if the message owns it or no ``copies`` are
        wanted.
        """
        kind, values = type(self), self.__dict__
        copies = copies and "_is_owned" not in values
        signature = kind._name
        numbers: list[float] = []
        contents: list[Bytes] = []
        for name in kind._field_names or kind._name_fields():
            value = values[name]
            signature += (ADD.get(type(value)) or add_of(value))(value, numbers, contents, copies)
        plan = _plans.get(signature) or _remember(signature)
        contents_bytes = len(contents[0]) if len(contents) == 1 else sum(map(len, contents))
        head = plan.pack(plan.begin, plan.numbers_bytes + contents_bytes, plan.end, *numbers)
        if contents_bytes <= INLINE_BYTES:
            return [b"".join((before, head, *contents))]
        if len(contents) == 1:
            return [before_several + head, contents[0]]
        frames = _joined((head, *contents))
        frames[0] = b"".join((before_several if len(frames) > 1 else before, frames[0]))
        return frames

    def add_to(self, numbers: list[float], contents: list[Bytes], copies: bool) -> bytes:
        kind, values = type(self), self.__dict__
        copies = copies and "_is_owned" not in values
        code = b"{" + kind._name
        for name in kind._field_names or kind._name_fields():
            value = values[name]
            code += (ADD.get(type(value)) or add_of(value))(value, numbers, contents, copies)
        return code + b"}"

    @classmethod
    def _name_fields(cls) -> tuple[str, ...]:
        cls._field_names = names = tuple(field.name for field in dataclasses.fields(cls))
        return names

    @property
    def size_bytes(self) -> int:
        """The length of ``pack()``, without packing."""
        names = self._field_names or self._name_fields()
        return _HEADER.size + len(self._name) + sum(size_bytes(self.__dict__[name]) for name in names)

    @property
    def inner_bytes(self) -> int:
        return self.size_bytes - _HEADER.size + 2

    def snapshot(self: MessageType) -> MessageType:
        """Return a copy that owns its tensors, so that the sender may go on writing to its own."""
        values = {name: self.__dict__[name] for name in self._field_names or self._name_fields()}
        own = {name: copy for name, value in values.items() if (copy := _own(value)) is not value}
        return (dataclasses.replace(self, **own) if own else self).owned()

    def owned(self: MessageType) -> MessageType:
        """Promise that nobody will write to its tensors, and return the message: sending it, even often, copies
        nothing.
        """
        self.__dict__["_is_owned"] = True
        return self

    @property
    def is_owned(self) -> bool:
        """Whether somebody promised not to write to its tensors (``owned``, ``snapshot``)."""
        return "_is_owned" in self.__dict__

    def is_of(self, *kinds: type[Message]) -> bool:
        """Whether the message is of one of ``kinds``, or of a kind derived from one.

        Kinds are compared by name, as they travel.
        """
        lineage = self._lineage
        for kind in kinds:  # noqa: SIM110 - three times as fast as any()
            if kind.kind in lineage:
                return True
        return False

    def received_as(self, asked: Iterable[type[Message]], kinds: Kinds | None = None) -> Message:
        """Return the message as an instance of the receiver's class of its kind: the one it ``asked`` for, else the one
        in ``kinds``.

        Raise ``BadMessage`` if that class has other fields.
        """
        own = None if kinds is None else kinds.find(self._name)
        for kind in asked:
            if kind.kind == self.kind:
                own = kind
        if own is None or (own is type(self) and kinds is None):
            return self
        given = [self.__dict__[name] for name in self._field_names or self._name_fields()]
        values = given if kinds is None else [_received(value, kinds) for value in given]
        if own is type(self) and all(value is before for value, before in zip(values, given, strict=True)):
            return self
        received = _made(own, values)
        return received.owned() if self.is_owned else received


def _own(value: Any) -> Any:
    """Return ``value``, or a copy of it that does not change with the sender's tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Message):
        return value if value.is_owned else value.snapshot()
    return tuple(map(_own, value)) if isinstance(value, tuple) and value else value


def _received(value: Any, kinds: Kinds) -> Any:
    """Return ``value`` with the receiver's class in place of the sender's, where it is a message or several."""
    if isinstance(value, tuple):
        own = tuple(_received(one, kinds) for one in value)
        return value if all(one is before for one, before in zip(own, value, strict=True)) else own
    return value.received_as((), kinds) if isinstance(value, Message) else value


def _made(kind: type[Message], values: Iterable[Any]) -> Message:
    try:
        return kind(*values)
    except (TypeError, ValueError) as error:  # the kind's own checks
        raise BadMessage(f"fields that make no {kind.__name__}: {error}") from None


@dataclasses.dataclass(frozen=True)
class TensorMessage(Message, wire="tensor"):
    """One tensor and nothing else."""

    tensor: Tensor


class Plan:
    """What follows from a signature: how to pack the head of a message, and how to read the rest of one."""

    def __init__(self, signature: bytes, shape: Shape, fields: Sequence[Field]) -> None:
        self.kind, self.fields = shape.kind, tuple((one.numbers_count, one.item_bytes, one.make) for one in fields)
        self.shape = None if all(part is _PLAIN for part in shape.parts) else shape
        numbers = "".join(field.numbers for field in fields)
        self.numbers = Struct(f"<{numbers}")
        self.begin, self.end = _BEGIN.pack(MAGIC, VERSION, len(signature)), bytes(4) + signature
        self.pack = Struct(f"<{len(self.begin)}sQ{len(self.end)}s{numbers}").pack
        self.numbers_bytes = self.numbers.size

    def read(self, head: bytes, at: int, end: int, rest: Iterator[memoryview]) -> Message:
        """Return the message whose numbers begin at ``at`` in its first frame and whose contents go on in the ``rest``,
        ``end`` bytes in all.

        Every length is checked against what is there before anything is made. No content goes over the end of a frame,
        so nothing is ever joined.
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
            return _assembled(self.shape, iter(values))
        try:
            return self.kind(*values)
        except (TypeError, ValueError) as error:  # the kind's own checks; inline, as most messages hold no others
            raise BadMessage(f"fields that make no {self.kind.__name__}: {error}") from None


class Shape(NamedTuple):
    """How a message is put together from the values of plain fields: a message, several, None, or ``_PLAIN`` for each
    field.
    """

    kind: type[Message]
    parts: list[Any]


_PLAIN: Final = object()


def _assembled(shape: Shape, values: Iterator[Any]) -> Message:
    """Return the message of that ``shape``; ``values`` are those of all its plain fields, and of the messages in it, in
    order.
    """
    found: list[Any] = []
    for part in shape.parts:
        if isinstance(part, Shape):
            found.append(_assembled(part, values))
        elif isinstance(part, list):
            found.append(tuple([_assembled(one, values) for one in part]))
        else:
            found.append(next(values) if part is _PLAIN else None)
    return _made(shape.kind, found)


def _remember(signature: bytes) -> Plan:
    """Return the plan of a signature that is not among the remembered, or raise ``BadMessage``."""
    if len(signature) > _LONGEST:
        raise BadMessage(
            f"a signature of {len(signature)} bytes is longer than {_LONGEST}; send fewer messages in one."
        )
    fields: list[Field] = []
    shape = _shape_of(parse(signature), None, fields)
    if len(_plans) >= _PLANS or sum(map(len, _plans)) > _SIGNATURES_BYTES:
        _plans.clear()
    plan = _plans[signature] = Plan(signature, shape, fields)
    return plan


def _shape_of(message: Inner, wanted: type[Message] | None, fields: list[Field]) -> Shape:
    """Return how the message is made, and add its plain fields to ``fields``.

    Prefer the class ``wanted`` if it is of that kind.
    """
    kind = wanted if wanted is not None and wanted._name == message.name else _in_use.find(message.name)
    if kind is None:
        raise BadMessage(f"unknown kind {message.name!r}.")
    types, parts = _types_of(kind), list[Any]()
    if len(message.parts) != len(types):
        raise BadMessage(f"{len(message.parts)} fields make no {kind.__name__}.")
    for part, (name, allowed) in zip(message.parts, types.items(), strict=True):
        parts.append(_part_of(part, allowed, f"the {name} of a {kind.__name__}", fields))
    return Shape(kind, parts)


def _part_of(part: Part, allowed: Sequence[Any], what: str, fields: list[Field]) -> object:
    """Return the shape of one field, or raise ``BadMessage`` if ``allowed``, plain types and tuples of one, has no
    place for it.
    """
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
    kinds = [one for one in allowed if isinstance(one, type) and issubclass(one, Message)]
    own = next((one for one in kinds if one._name == part.name), None)
    shape = _shape_of(part, own, fields)
    if object not in allowed and not any(one.kind in shape.kind._lineage for one in kinds):
        raise BadMessage(f"a {shape.kind.__name__} came as {what}.")
    return shape


def _types_of(kind: type[Message]) -> dict[str, tuple[Any, ...]]:
    """Return of what types each field may be.

    A float may come as an integer; a hint that is no plain type allows anything.
    """
    try:
        hints = get_type_hints(kind)
    except NameError:  # of a kind that was made within a function
        hints = {}
    return {field.name: _plain_types(hints.get(field.name, object)) for field in dataclasses.fields(kind)}


def _plain_types(hint: Any) -> tuple[Any, ...]:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if not all(isinstance(one, type) or (get_origin(one) is tuple and len(get_args(one)) == 2) for one in members):
        return (object,)
    return (*members, int) if float in members else members


def unpack(packed: bytes) -> Message:
    """Return the message that ``packed`` holds, or raise ``BadMessage``: nothing is executed and nothing large
    allocated.
    """
    if len(packed) >= _HEADER.size:
        magic, _, length, body_bytes, checksum = _HEADER.unpack_from(packed)
        announced = _HEADER.size + length + body_bytes
        if magic == MAGIC and len(packed) != announced:
            raise BadMessage(f"{len(packed)} bytes came where the header announces {announced}.")
        if zlib.crc32(memoryview(packed)[_HEADER.size :]) != checksum:
            raise BadMessage("the checksum does not match.")
    return unpack_frames(packed)


def unpack_frames(head: bytes, at: int = 0, rest: Iterator[memoryview] = _NOTHING) -> Message:
    """Return the message that begins at ``at`` in its first frame, or raise ``BadMessage``; the checksum is the
    transport's business.

    As many further frames are taken from ``rest`` as it needs; large ones must begin where a tensor may. A large tensor
    that fills one of them, if it is writable, is that frame's memory and keeps it alive; all others are copies. Either
    way it is the caller's.
    """
    try:
        magic, version, length, body_bytes, _ = _HEADER.unpack_from(head, at)
    except struct.error:
        raise BadMessage(f"{len(head) - at} bytes are shorter than a header of {_HEADER.size}.") from None
    if magic != MAGIC or version != VERSION:
        raise BadMessage(f"header {magic!r} version {version} is not {MAGIC!r} version {VERSION}.")
    begin = at + _HEADER.size
    end = begin + length
    signature = head[begin:end]
    plan = _plans.get(signature) or _remember(signature)
    return plan.read(head, end, end + body_bytes, rest)


def _joined(parts: Sequence[Bytes]) -> list[Bytes]:
    """Return ``parts`` with neighbours that are small made into one."""
    frames: list[Bytes] = []
    small: list[Bytes] = []
    for part in filter(len, parts):
        if len(part) <= INLINE_BYTES:
            small.append(part)
            continue
        frames += [b"".join(small), part] if small else [part]
        small = []
    return [*frames, b"".join(small)] if small else frames
