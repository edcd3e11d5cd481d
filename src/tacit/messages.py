"""Messages: frozen dataclasses that travel, pack to bytes without pickle, and know their exact size.

Layout of the packed bytes, little endian:

    magic «tc» · version u8 · kind length u8 · body length u64 · crc32 of kind and body u32 · kind · body

The body is the fields in their declared order, each behind one type byte: integers i64, numbers f64, booleans u8, text and bytes as u32 length
and content, tensors as dtype u8, rank u8, sizes u64 each, then the raw values.

``pack`` makes these bytes in one piece. ``frames`` makes the same bytes in several, large tensors being pieces of their own that are neither
copied nor joined; there the checksum is 0, because TCP and CURVE check already and crc32 would cost more than the transfer.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar

import torch
from torch import Tensor

from tacit.errors import BadMessage

MAGIC: Final = b"tc"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<2sBBQI")
_DTYPES: Final = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_MAXIMUM_RANK: Final = 8
_INLINE_BYTES: Final = 2**16
"""Tensors up to this size are copied into the frame of their message: below it a frame of their own costs more than the copy."""

_kinds: dict[str, type[Message]] = {}
_names: dict[type[Message], tuple[str, ...]] = {}
MessageType = TypeVar("MessageType", bound="Message")
Bytes = bytes | memoryview


@dataclasses.dataclass(frozen=True)
class Message:
    """Base of everything that travels. A subclass is a frozen dataclass whose fields are tensors, numbers, text or bytes."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.kind = cls.__name__
        known = _kinds.get(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"a message kind {cls.kind} exists in {known.__module__}: kinds travel by name; choose another."
            )
        _kinds[cls.kind] = cls

    def pack(self) -> bytes:
        """Return the message as contiguous bytes."""
        name, body = self.kind.encode(), b"".join(self._parts())
        crc = zlib.crc32(body, zlib.crc32(name))
        return b"".join((_HEADER.pack(MAGIC, VERSION, len(name), len(body), crc), name, body))

    def frames(self) -> list[Bytes]:
        """Return a snapshot of the message as buffers to be sent in this order, together ``size_bytes`` long.

        A large tensor is a frame of its own: its very memory if the message owns it, else a copy.
        """
        name, parts = self.kind.encode(), self._parts(copies=not self.is_owned)
        header = _HEADER.pack(MAGIC, VERSION, len(name), sum(map(len, parts)), 0)
        return _joined([header, name, *parts])

    def _parts(self, copies: bool = False) -> list[Bytes]:
        """Return the body piece by piece; with ``copies`` no large piece is the memory of a tensor of the message."""
        parts: list[Bytes] = []
        for name in _field_names(type(self)):
            value = getattr(self, name)
            parts.append(_pack_field(value))
            if isinstance(value, Tensor):
                parts.append(_values(value, copies))
        return parts

    @property
    def size_bytes(self) -> int:
        """The length of ``pack()``, without packing."""
        fields = dataclasses.fields(self)
        return _HEADER.size + len(self.kind) + sum(_field_size(getattr(self, field.name)) for field in fields)

    def snapshot(self: MessageType) -> MessageType:
        """Return a copy that owns its tensors, so that the sender may go on writing to its own."""
        own = {f.name: v.clone() for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return dataclasses.replace(self, **own).owned()

    def owned(self: MessageType) -> MessageType:
        """Return this message with the promise that nobody will write to its tensors: sending it, even often, copies nothing."""
        promised = object.__new__(type(self))
        promised.__dict__.update(self.__dict__, _is_owned=True)
        return promised

    @property
    def is_owned(self) -> bool:
        """Whether somebody promised not to write to its tensors (``owned``, ``snapshot``)."""
        return "_is_owned" in self.__dict__


@dataclasses.dataclass(frozen=True)
class TensorMessage(Message):
    """One tensor and nothing else."""

    tensor: Tensor


def unpack(packed: bytes) -> Message:
    """Return the message that ``packed`` holds, or raise ``BadMessage``: nothing is executed and nothing large allocated."""
    view = memoryview(packed)
    if len(view) >= _HEADER.size and zlib.crc32(view[_HEADER.size :]) != _HEADER.unpack_from(view)[4]:
        _check_header(view, len(view))  # a truncated message says so first
        raise BadMessage("the checksum does not match.")
    return unpack_frames([view])


def unpack_frames(frames: Sequence[memoryview]) -> Message:
    """Return the message that came as ``frames``, or raise ``BadMessage``; the checksum is the transport's business.

    A tensor that fills an aligned, writable frame is that frame's memory and keeps it alive; all others are copies. Either way it is the caller's.
    """
    head = frames[0]
    start = _HEADER.size + _check_header(head, sum(len(frame) for frame in frames))
    kind = _kinds.get(str(head[_HEADER.size : start], "utf-8", "replace"))
    if kind is None:
        raise BadMessage(f"unknown kind {bytes(head[_HEADER.size : start])!r}.")
    reader = _Reader(frames, start)
    values = [reader.field() for _ in _field_names(kind)]
    if reader.bytes_left:
        raise BadMessage(f"{reader.bytes_left} bytes are left over behind the last field.")
    try:
        return kind(*values)
    except (TypeError, ValueError) as error:  # the kind's own checks
        raise BadMessage(f"fields that make no {kind.kind}: {error}") from None


def _check_header(head: memoryview, size: int) -> int:
    """Return the length of the kind's name if ``size`` bytes beginning with ``head`` can be a message."""
    if len(head) < _HEADER.size:
        raise BadMessage(f"{len(head)} bytes are shorter than a header of {_HEADER.size}.")
    magic, version, name_length, body_length, _ = _HEADER.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise BadMessage(f"header {magic!r} version {version} is not {MAGIC!r} version {VERSION}.")
    if size != _HEADER.size + name_length + body_length:
        raise BadMessage(f"{size} bytes came where the header announces {_HEADER.size + name_length + body_length}.")
    if len(head) < _HEADER.size + name_length:
        raise BadMessage(f"a first frame of {len(head)} bytes ends within the kind's name.")
    return int(name_length)


def _joined(parts: Sequence[Bytes]) -> list[Bytes]:
    """Return ``parts`` with neighbours that are small made into one."""
    frames: list[Bytes] = []
    small: list[Bytes] = []
    for part in parts:
        if len(part) <= _INLINE_BYTES:
            small.append(part)
            continue
        frames += [b"".join(small), part]
        small = []
    return [*frames, b"".join(small)] if small else frames


def _field_names(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of its fields, remembered: ``dataclasses.fields`` takes longer than all the rest of a small message."""
    if kind not in _names:
        _names[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return _names[kind]


def _pack_field(value: object) -> bytes:
    """Return the field as it is packed; of a tensor only what stands before its values."""
    match value:
        case bool():
            return struct.pack("<cB", b"?", value)
        case int():
            return struct.pack("<cq", b"i", value)
        case float():
            return struct.pack("<cd", b"f", value)
        case str():
            encoded = value.encode()
            return struct.pack("<cI", b"s", len(encoded)) + encoded
        case bytes():
            return struct.pack("<cI", b"b", len(value)) + value
        case Tensor():
            dimensions = value.dim()
            return struct.pack(f"<cBB{dimensions}Q", b"t", _DTYPES.index(value.dtype), dimensions, *value.shape)
        case _:
            raise TypeError(f"a message cannot hold a {type(value).__name__}; use tensors, numbers, text or bytes.")


def _values(tensor: Tensor, copies: bool) -> Bytes:
    """Return the raw values: a copy of those of a small tensor, and of a large one if ``copies``, else its memory."""
    on_cpu = tensor.detach() if tensor.is_cpu else tensor.detach().cpu()
    if not on_cpu.is_contiguous():
        on_cpu = on_cpu.contiguous()
    if on_cpu.nbytes <= _INLINE_BYTES:
        return ctypes.string_at(on_cpu.data_ptr(), on_cpu.nbytes)  # a tenth of the time of a view by way of numpy
    if copies and on_cpu.data_ptr() == tensor.data_ptr():
        on_cpu = on_cpu.clone()
    values: memoryview = on_cpu.reshape(-1).view(torch.uint8).numpy().data
    return values


def _field_size(value: object) -> int:
    match value:
        case bool():
            return 2
        case int() | float():
            return 9
        case str():
            return 5 + len(value.encode())
        case bytes():
            return 5 + len(value)
        case Tensor():
            return 3 + 8 * value.dim() + value.numel() * value.element_size()
        case _:
            raise TypeError(f"a message cannot hold a {type(value).__name__}; use tensors, numbers, text or bytes.")


class _Reader:
    """Reads fields from untrusted frames: every length is checked against what is there before anything is made.

    No field may go over the end of a frame, so nothing is ever joined.
    """

    def __init__(self, frames: Sequence[memoryview], at: int) -> None:
        self._frame, self._at, self._next = frames[0], at, list(frames[:0:-1])

    @property
    def bytes_left(self) -> int:
        return len(self._frame) - self._at + sum(len(frame) for frame in self._next)

    def take(self, size: int) -> memoryview:
        while size and self._at == len(self._frame) and self._next:
            self._frame, self._at = self._next.pop(), 0
        if size > len(self._frame) - self._at:
            raise BadMessage(
                f"a field of {size} bytes does not fit into the {len(self._frame) - self._at} that are left."
            )
        self._at += size
        return self._frame[self._at - size : self._at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def field(self) -> object:
        match bytes(self.take(1)):
            case b"?":
                return bool(self.take(1)[0])
            case b"i":
                return self.numbers("<q")[0]
            case b"f":
                return self.numbers("<d")[0]
            case b"s":
                try:
                    return str(self.take(self.numbers("<I")[0]), "utf-8")
                except UnicodeDecodeError as error:
                    raise BadMessage(f"text that is not UTF-8: {error.reason}.") from None
            case b"b":
                return bytes(self.take(self.numbers("<I")[0]))
            case b"t":
                return self._tensor()
            case other:
                raise BadMessage(f"unknown field type {other!r}.")

    def _tensor(self) -> Tensor:
        code, dimensions = self.numbers("<BB")
        if code >= len(_DTYPES) or dimensions > _MAXIMUM_RANK:
            raise BadMessage(f"a tensor of dtype code {code} with {dimensions} dimensions.")
        shape, dtype = self.numbers(f"<{dimensions}Q"), _DTYPES[code]
        raw = self.take(math.prod(shape) * dtype.itemsize)
        if not raw:
            return self._empty(shape, dtype)
        if len(raw) == len(self._frame) and not raw.readonly:
            values = torch.frombuffer(raw, dtype=torch.uint8)
            if values.data_ptr() % dtype.itemsize == 0:
                return values.view(dtype).reshape(shape)
        values = torch.frombuffer(bytearray(raw), dtype=dtype)
        return values if dimensions == 1 else values.reshape(shape)

    @staticmethod
    def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if math.prod(max(1, size) for size in shape) > 2**31:  # torch multiplies the strides, zero or not
            raise BadMessage(f"an empty tensor of sizes {shape}.")
        return torch.empty(shape, dtype=dtype)
