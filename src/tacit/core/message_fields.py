"""The fields of messages as bytes: packed without pickle, and read from untrusted bytes.

A message's *signature* is its kind and a code for each field; then come the *numbers* of all fields, in one piece, then
their *contents*:

    field       code                      numbers           content
    boolean     ?                         u8
    integer     #                         i64
    number      .                         f64
    text        "                         length u32        UTF-8
    bytes       '                         length u32        unchanged
    tensor      [, dtype u8, rank u8      sizes u64 each    the raw values
    None        ~
    message     {, kind, its codes, }     those of its fields, then their contents
    messages    (, each as above, )       a tuple

All little endian.

Caches are cold between messages, so this code runs about four times slower than in a tight loop. Keep the path of one
message short.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.errors import BadMessage

Bytes = bytes | memoryview

INLINE_BYTES: Final = 2**16
"""Tensors up to this size are copied into the first frame of a message; a frame of their own would cost more."""
_DTYPES: Final = (
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
)
_TENSOR_CODES: Final = {
    (dtype, rank): bytes((ord("["), code, rank)) for code, dtype in enumerate(_DTYPES) for rank in range(9)
}
_CODES_OF_FORMATS: Final = {
    (torch.empty(0, dtype=dtype).numpy().data.format, rank): code
    for (dtype, rank), code in _TENSOR_CODES.items()
    if dtype is not torch.bfloat16
}
"""The same codes by the format of a tensor's memoryview, which does not exist for bfloat16."""
_CODES: Final = re.compile(rb"[?#.\"'\[~{}()]")
"""The codes, the first of which ends the kind in a signature."""
MAX_DEPTH: Final = 4
"""How deep messages may be nested."""


class Nestable:
    """Base class of messages: the interface of a message inside another message."""

    def add_to(self, numbers: list[float], contents: list[Bytes], copies: bool) -> bytes:
        """Append the numbers and contents of all fields, and return the code of the message."""
        raise NotImplementedError

    @property
    def inner_bytes(self) -> int:
        """The length of the message inside another one: its code, numbers and contents."""
        raise NotImplementedError


# Packing. Each function appends the numbers and the content of a value, and returns its code.

Add = Callable[[Any, list[float], list[Bytes], bool], bytes]
"""The last argument: whether to copy the content of a large tensor; if not, the tensor's memory itself is appended."""


def _add_boolean(value: bool, numbers: list[float], _: list[Bytes], __: bool) -> bytes:
    numbers.append(value)
    return b"?"


def _add_integer(value: int, numbers: list[float], _: list[Bytes], __: bool) -> bytes:
    numbers.append(value)
    return b"#"


def _add_number(value: float, numbers: list[float], _: list[Bytes], __: bool) -> bytes:
    numbers.append(value)
    return b"."


def _add_text(value: str, numbers: list[float], contents: list[Bytes], _: bool) -> bytes:
    encoded = value.encode()
    numbers.append(len(encoded))
    contents.append(encoded)
    return b'"'


def _add_bytes(value: bytes, numbers: list[float], contents: list[Bytes], _: bool) -> bytes:
    numbers.append(len(value))
    contents.append(value)
    return b"'"


def _add_nothing(_: None, __: list[float], ___: list[Bytes], ____: bool) -> bytes:
    return b"~"


def _add_messages(value: tuple[Nestable, ...], numbers: list[float], contents: list[Bytes], copies: bool) -> bytes:
    for one in value:
        if not isinstance(one, Nestable):
            raise TypeError(f"a message cannot hold a tuple with a {type(one).__name__}; use a tuple of messages.")
    return b"(" + b"".join([one.add_to(numbers, contents, copies) for one in value]) + b")"


def _add_tensor(value: Tensor, numbers: list[float], contents: list[Bytes], copies: bool) -> bytes:
    try:
        memory = value.numpy().data  # faster to inspect than the tensor
        code = _CODES_OF_FORMATS[memory.format, memory.ndim]
    except (TypeError, RuntimeError, KeyError):  # on a GPU, part of a graph, or of a dtype that numpy lacks
        return _add_other_tensor(value, numbers, contents, copies)
    numbers += memory.shape or ()
    if memory.nbytes <= INLINE_BYTES:
        contents.append(memory.tobytes())
    elif copies or not memory.c_contiguous:
        contents.append(_memory(value.clone(memory_format=torch.contiguous_format)))
    else:
        contents.append(memory.cast("B"))
    return code


def _add_other_tensor(value: Tensor, numbers: list[float], contents: list[Bytes], copies: bool) -> bytes:
    code = _TENSOR_CODES.get((value.dtype, value.dim()))
    if code is None:
        raise TypeError(f"a message cannot hold a tensor of {value.dtype} with {value.dim()} dimensions.")
    numbers += value.shape
    on_cpu = value.detach().to("cpu", copy=copies and value.is_cpu, memory_format=torch.contiguous_format)
    memory = _memory(on_cpu)
    contents.append(memory.tobytes() if memory.nbytes <= INLINE_BYTES else memory)
    return code


def _memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor without copying them."""
    array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    memory: memoryview = array.reshape(-1).view("B").data
    return memory


ADD: Final[dict[type, Add]] = {  # bool before int, its base class
    Tensor: _add_tensor,
    bool: _add_boolean,
    int: _add_integer,
    float: _add_number,
    str: _add_text,
    bytes: _add_bytes,
    type(None): _add_nothing,
    tuple: _add_messages,
}


_NUMPY: Final[dict[type, Add]] = {np.bool_: _add_boolean, np.integer: _add_integer, np.floating: _add_number}


def add_of(value: object) -> Add:
    """Return the function for a message, or for a value whose type is derived from a type in ``ADD``."""
    if isinstance(value, Nestable):
        return type(value).add_to
    for known, add in (*ADD.items(), *_NUMPY.items()):
        if isinstance(value, known):
            return add
    raise TypeError(
        f"a message cannot hold a {type(value).__name__}; use tensors, numbers, text or bytes, or messages."
    )


FIXED_BYTES: Final[dict[type, int]] = {int: 9, float: 9, bool: 2, type(None): 1}
"""The lengths of the codes and numbers of values of these types."""


def size_bytes(value: object) -> int:
    """Return the length of a value's code, numbers and content."""
    if isinstance(value, Tensor):
        return 3 + 8 * value.dim() + value.nbytes
    if isinstance(value, str | bytes):
        return 5 + len(value.encode() if isinstance(value, str) else value)
    if isinstance(value, Nestable):
        return value.inner_bytes
    if isinstance(value, tuple):
        return 2 + sum(map(size_bytes, value))
    if value is None:
        return 1
    return 2 if isinstance(value, bool | np.bool_) else 9


# Reading.


class Field(NamedTuple):
    """How to read one field."""

    numbers: str
    """Format of its numbers in the notation of ``struct``."""
    numbers_count: int
    item_bytes: int
    """The size of the content is the product of the numbers times this; 0: no content, the number is the value."""
    make: Callable[[memoryview, Sequence[int], bool], object]
    """Return the value, given the content, the numbers, and whether the content is a whole frame."""
    value_type: type


def _no_content(*_: object) -> None: ...


def _make_text(raw: memoryview, _: Sequence[int], __: bool) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise BadMessage(f"text that is not UTF-8: {error.reason}.") from None


def _make_bytes(raw: memoryview, _: Sequence[int], __: bool) -> bytes:
    return bytes(raw)


def _tensor(dtype: torch.dtype, rank: int) -> Field:
    def make(raw: memoryview, shape: Sequence[int], is_frame: bool) -> Tensor:
        if not raw:
            return _empty(shape, dtype)
        # A large frame is an allocation of its own and therefore aligned; a part of a frame may begin anywhere.
        is_block = is_frame and len(raw) > INLINE_BYTES and not raw.readonly
        values = torch.frombuffer(raw if is_block else bytearray(raw), dtype=dtype)
        return values if rank == 1 else values.view(shape)

    return Field(f"{rank}Q", rank, dtype.itemsize, make, Tensor)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    if math.prod(max(1, size) for size in shape) > 2**31:  # torch computes strides, which may overflow
        raise BadMessage(f"an empty tensor of sizes {tuple(shape)}.")
    return torch.empty(shape, dtype=dtype)


_FIELDS: Final[dict[bytes, Field]] = {
    b"?": Field("?", 1, 0, _no_content, bool),
    b"#": Field("q", 1, 0, _no_content, int),
    b".": Field("d", 1, 0, _no_content, float),
    b'"': Field("I", 1, 1, _make_text, str),
    b"'": Field("I", 1, 1, _make_bytes, bytes),
} | {code: _tensor(dtype, rank) for (dtype, rank), code in _TENSOR_CODES.items()}


class Inner(NamedTuple):
    """A message as described by a signature: its kind and its fields in order."""

    name: bytes
    parts: list[Part]


Part = Field | Inner | list[Inner] | None
"""A field: a plain value, a message, several messages, or None."""


def parse(signature: bytes) -> Inner:
    """Return the message that a signature describes, or raise ``BadMessage``."""
    message, end = _parse(signature, 0, 0)
    if end != len(signature):
        raise BadMessage(f"unknown field type {signature[end : end + 1]!r}.")
    return message


def _parse(signature: bytes, at: int, depth: int) -> tuple[Inner, int]:
    """Return the message whose kind begins at ``at``, and the end of its description."""
    if depth > MAX_DEPTH:
        raise BadMessage(f"a message holds messages more than {MAX_DEPTH} deep.")
    name_end = _CODES.search(signature, at)
    end = name_end.start() if name_end else len(signature)
    name, parts = signature[at:end], list[Part]()
    while end < len(signature) and signature[end] not in b"})":
        match code := signature[end : end + (3 if signature[end] == ord("[") else 1)]:
            case b"{":
                inner, end = _parse_inner(signature, end, depth)
                parts.append(inner)
            case b"(":
                items, end = list[Inner](), end + 1
                while signature[end : end + 1] == b"{":
                    inner, end = _parse_inner(signature, end, depth)
                    items.append(inner)
                end = _after(signature, end, b")")
                parts.append(items)
            case _:
                if code not in _FIELDS and code != b"~":
                    raise BadMessage(f"unknown field type {code!r}.")
                parts.append(_FIELDS.get(code))
                end += len(code)
    return Inner(name, parts), end


def _parse_inner(signature: bytes, at: int, depth: int) -> tuple[Inner, int]:
    inner, end = _parse(signature, at + 1, depth + 1)
    return inner, _after(signature, end, b"}")


def _after(signature: bytes, at: int, closing: bytes) -> int:
    if signature[at : at + 1] != closing:
        raise BadMessage(f"{signature[at : at + 1]!r} came where {closing!r} ends a field.")
    return at + 1
