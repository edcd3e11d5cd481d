"""Messages: frozen dataclasses that travel, pack to bytes without pickle, and know their exact size.

Layout of the packed bytes, little endian:

    magic «tc» · version u8 · kind length u8 · body length u64 · crc32 of kind and body u32 · kind · body

The body is the fields in their declared order, each behind one type byte: integers i64, numbers f64, booleans u8, text and bytes as u32 length
and content, tensors as dtype u8, rank u8, sizes u64 each, then the raw values.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
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

_kinds: dict[str, type[Message]] = {}
MessageType = TypeVar("MessageType", bound="Message")


@dataclasses.dataclass(frozen=True)
class Message:
    """Base of everything that travels. A subclass is a frozen dataclass whose fields are tensors, numbers, text or bytes."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.kind = cls.__name__
        _kinds[cls.kind] = cls

    def pack(self) -> bytes:
        """Return the message as contiguous bytes."""
        name = self.kind.encode()
        body = b"".join(_pack_field(getattr(self, field.name)) for field in dataclasses.fields(self))
        crc = zlib.crc32(body, zlib.crc32(name))
        return b"".join((_HEADER.pack(MAGIC, VERSION, len(name), len(body), crc), name, body))

    @property
    def size_bytes(self) -> int:
        """The length of ``pack()``, without packing."""
        fields = dataclasses.fields(self)
        return _HEADER.size + len(self.kind) + sum(_field_size(getattr(self, field.name)) for field in fields)

    def snapshot(self: MessageType) -> MessageType:
        """Return a copy that owns its tensors, so that the sender may go on writing to its own."""
        own = {f.name: v.clone() for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return dataclasses.replace(self, **own)


@dataclasses.dataclass(frozen=True)
class TensorMessage(Message):
    """One tensor and nothing else."""

    tensor: Tensor


def unpack(packed: bytes) -> Message:
    """Return the message that ``packed`` holds, or raise ``BadMessage``: nothing is executed and nothing large allocated."""
    if len(packed) < _HEADER.size:
        raise BadMessage(f"{len(packed)} bytes are shorter than a header of {_HEADER.size}.")
    magic, version, name_length, body_length, crc = _HEADER.unpack_from(packed)
    if magic != MAGIC or version != VERSION:
        raise BadMessage(f"header {magic!r} version {version} is not {MAGIC!r} version {VERSION}.")
    if len(packed) != _HEADER.size + name_length + body_length:
        raise BadMessage(
            f"{len(packed)} bytes came where the header announces {_HEADER.size + name_length + body_length}."
        )
    if zlib.crc32(memoryview(packed)[_HEADER.size :]) != crc:
        raise BadMessage("the checksum does not match.")
    start = _HEADER.size + name_length
    kind = _kinds.get(packed[_HEADER.size : start].decode("utf-8", "replace"))
    if kind is None:
        raise BadMessage(f"unknown kind {packed[_HEADER.size : start]!r}.")
    reader, values = _Reader(packed, start), []
    for _ in dataclasses.fields(kind):
        values.append(reader.field())
    if reader.at != len(packed):
        raise BadMessage(f"{len(packed) - reader.at} bytes are left over behind the last field.")
    return kind(*values)


def _pack_field(value: object) -> bytes:
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
            head = struct.pack("<cBB", b"t", _DTYPES.index(value.dtype), value.dim())
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return head + struct.pack(f"<{value.dim()}Q", *value.shape) + raw
        case _:
            raise TypeError(f"a message cannot hold a {type(value).__name__}; use tensors, numbers, text or bytes.")


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
    """Reads fields from untrusted bytes: every length is checked against what is there before anything is made."""

    def __init__(self, packed: bytes, at: int) -> None:
        self.packed, self.at = packed, at

    def take(self, size: int) -> bytes:
        if size > len(self.packed) - self.at:
            raise BadMessage(
                f"a field of {size} bytes does not fit into the {len(self.packed) - self.at} that are left."
            )
        self.at += size
        return self.packed[self.at - size : self.at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def field(self) -> object:
        match self.take(1):
            case b"?":
                return bool(self.take(1)[0])
            case b"i":
                return self.numbers("<q")[0]
            case b"f":
                return self.numbers("<d")[0]
            case b"s":
                raw = self.take(self.numbers("<I")[0])
                try:
                    return raw.decode()
                except UnicodeDecodeError as error:
                    raise BadMessage(f"text that is not UTF-8: {error.reason}.") from None
            case b"b":
                return self.take(self.numbers("<I")[0])
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
        return torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).view(dtype).reshape(shape)

    @staticmethod
    def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if any(size > 2**31 for size in shape):
            raise BadMessage(f"an empty tensor of sizes {shape}.")
        return torch.empty(shape, dtype=dtype)
