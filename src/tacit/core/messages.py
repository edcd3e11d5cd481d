"""Messages: frozen dataclasses that are packed to bytes without pickle and know their exact size.

Layout of the packed bytes, little endian:

    magic «tc» · version u8 · signature length u16 · body length u64 · crc32 of signature and body u32 · signature ·
    body

The signature holds the kind and a code for each field, the body the numbers and contents of the fields (see
``message_fields``). Most messages of a kind have the same signature, so what follows from it is cached as a ``Plan``
(see ``message_reading``).

The kind is a short wire name, ``class Update(Message, wire="update")``, so that a class can be renamed without a change
of sizes, traces and digests. Without ``wire=`` it is the name of the class.

A field may hold a message or a tuple of messages. Their codes, numbers and contents are part of the outer message,
under one header and one checksum. Reading refuses a value that the type hint of the field does not allow.

``pack`` returns these bytes in one piece. ``frames`` returns the same bytes in several pieces; a large tensor is its
own piece, neither copied nor joined. The checksum is 0 there: TCP and CURVE verify the data already, and crc32 would
take longer than the transfer.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Final, TypeVar

from torch import Tensor

from tacit.core.message_fields import ADD, FIXED_BYTES, INLINE_BYTES, Bytes, Nestable, add_of, size_bytes
from tacit.core.message_kinds import IN_USE, Kinds
from tacit.core.message_reading import CHECKSUM, HEADER, make_message, plan_of
from tacit.errors import BadMessage

_WIRE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")

MessageType = TypeVar("MessageType", bound="Message")


@dataclasses.dataclass(frozen=True)
class Message(Nestable):
    """Base class of messages.

    A subclass is a frozen dataclass. Its fields are tensors, numbers, text, bytes, messages, tuples of messages or
    None. The class argument ``wire=`` is the kind, which is sent and written into traces; the class name by default.
    """

    one_under_way: ClassVar[bool] = False
    """Whether ``send`` from a hook waits until the receiver has got the sender's last message of such a kind."""

    kind: ClassVar[str] = ""
    _name: ClassVar[bytes] = b""  # the kind, encoded
    _lineage: ClassVar[frozenset[str]] = frozenset({""})  # the kinds of the class and of its base classes
    _field_names: ClassVar[tuple[str, ...] | None] = None  # cached: ``dataclasses.fields`` is slow

    def __init_subclass__(cls, wire: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if wire is not None and not (isinstance(wire, str) and _WIRE_NAME.fullmatch(wire)):
            raise TypeError(
                f'wire={wire!r} of {cls.__name__} must be 1 to 32 letters, digits, _ or -, such as wire="update".'
            )
        cls.kind = cls.__name__ if wire is None else wire
        cls._name, cls._field_names = cls.kind.encode(), None
        bases = [base._lineage for base in cls.__bases__ if issubclass(base, Message)]
        cls._lineage = frozenset({cls.kind}).union(*bases)
        known = IN_USE.kinds.find(cls._name) or cls
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"{cls.__module__}.{cls.__name__} has the wire name {cls.kind!r}, which "
                f"{known.__module__}.{known.__name__} uses already; pass another one: "
                f"class {cls.__name__}(Message, wire=…)."
            )
        IN_USE.kinds.define(cls._name, cls)

    def pack(self) -> bytes:
        """Return the message as contiguous bytes."""
        packed = bytearray().join(self.frames(copies=False))
        CHECKSUM.pack_into(packed, HEADER.size - CHECKSUM.size, zlib.crc32(memoryview(packed)[HEADER.size :]))
        return bytes(packed)

    def frames(self, before: bytes = b"", before_several: bytes = b"", *, copies: bool = True) -> list[Bytes]:
        """Return the message as buffers of ``size_bytes`` in all, plus a prefix.

        The prefix is ``before``, or ``before_several`` if there are several buffers. A large tensor is a buffer of its
        own: a copy, or the memory of the tensor if the message owns it or without ``copies``.
        """
        kind, values = type(self), self.__dict__
        copies = copies and "_is_owned" not in values
        signature = kind._name
        numbers: list[float] = []
        contents: list[Bytes] = []
        for name in kind._field_names or kind._name_fields():
            value = values[name]
            signature += (ADD.get(type(value)) or add_of(value))(value, numbers, contents, copies)
        plan = IN_USE.plans.get(signature) or plan_of(signature)
        contents_bytes = len(contents[0]) if len(contents) == 1 else sum(map(len, contents))
        head = plan.pack(plan.begin, plan.numbers_bytes + contents_bytes, plan.end, *numbers)
        if contents_bytes <= INLINE_BYTES:
            return [b"".join((before, head, *contents))]
        if len(contents) == 1:
            return [before_several + head, contents[0]]
        frames = _join_small((head, *contents))
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
        return self.inner_bytes + HEADER.size - 2

    @property
    def inner_bytes(self) -> int:
        values, length = self.__dict__, len(self._name) + 2
        for name in self._field_names or self._name_fields():
            value = values[name]
            length += FIXED_BYTES.get(type(value)) or size_bytes(value)
        return length

    def snapshot(self: MessageType) -> MessageType:
        """Return a copy that owns its tensors, so that the sender may overwrite the original ones."""
        values, copied = self.__dict__, object.__new__(type(self))  # this message has checked the values
        own, is_copied = copied.__dict__, False
        for name in self._field_names or self._name_fields():
            own[name] = value = values[name]
            if type(value) not in FIXED_BYTES:
                own[name] = _own(value)
                is_copied = is_copied or own[name] is not value
        return copied.owned() if is_copied else self.owned()

    def owned(self: MessageType) -> MessageType:
        """Promise that its tensors will not be overwritten, and return the message. Sending it then copies nothing."""
        self.__dict__["_is_owned"] = True
        return self

    @property
    def is_owned(self) -> bool:
        """Whether its tensors will not be overwritten (``owned``, ``snapshot``)."""
        return "_is_owned" in self.__dict__

    def is_of(self, *kinds: type[Message]) -> bool:
        """Whether the message is of one of ``kinds``, or of a kind derived from one. Kinds are compared by name."""
        lineage = self._lineage
        for kind in kinds:  # noqa: SIM110 - three times as fast as any()
            if kind.kind in lineage:
                return True
        return False

    def received_as(self, asked: Collection[type[Message]], kinds: Kinds | None = None) -> Message:
        """Return the message as an instance of the receiver's class: the one ``asked`` for, else the one in ``kinds``.

        Raise ``BadMessage`` if that class has other fields.
        """
        if kinds is None and type(self) in asked:
            return self
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
        received = make_message(own, values)
        return received.owned() if self.is_owned else received


def check_kind(messages: Sequence[Message], kind: type[Message]) -> None:
    """Raise ``BadMessage`` unless all ``messages`` are of ``kind``."""
    for received in set(map(type, messages)):
        if not issubclass(received, kind):
            raise BadMessage(f"received {received.__name__}, expected {kind.__name__}.")


def _own(value: Any) -> Any:
    """Return ``value``, or a copy of it that is independent of the sender's tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Message):
        return value if value.is_owned else value.snapshot()
    return tuple(map(_own, value)) if isinstance(value, tuple) and value else value


def _received(value: Any, kinds: Kinds) -> Any:
    """Return ``value``; a message, or a tuple of messages, as instances of the receiver's classes."""
    if isinstance(value, tuple):
        own = tuple(_received(one, kinds) for one in value)
        return value if all(one is before for one, before in zip(own, value, strict=True)) else own
    return value.received_as((), kinds) if isinstance(value, Message) else value


@dataclasses.dataclass(frozen=True)
class TensorMessage(Message, wire="tensor"):
    """A message with one tensor."""

    tensor: Tensor


def _join_small(parts: Sequence[Bytes]) -> list[Bytes]:
    """Return ``parts`` with adjacent small parts joined into one; empty parts are left out."""
    frames: list[Bytes] = []
    small: list[Bytes] = []
    for part in filter(len, parts):
        if len(part) <= INLINE_BYTES:
            small.append(part)
            continue
        frames += [b"".join(small), part] if small else [part]
        small = []
    return [*frames, b"".join(small)] if small else frames
