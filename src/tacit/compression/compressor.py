"""Base classes of compressors and of their messages: a flat vector in, a message out, and back.

A compressor is a frozen specification; its state between calls is a ``Memory`` that the caller keeps. Two constants
describe its error: α of *contraction*, E‖C(x) − x‖² ≤ (1 − α)‖x‖², which error feedback needs, and ω of *variance*,
E C(x) = x and E‖C(x) − x‖² ≤ ω‖x‖², which averaging needs. ``tacit.testing.check_compressor`` tests
them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Final, Self

import numpy as np
import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import Spec
from tacit.errors import BadMessage, require

Memory = dict[str, Tensor]
"""The state of a compressor between calls: tensors only, so that it can be checkpointed."""

FLOATS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MAXIMUM_LENGTH: Final = 2**40


@dataclass(frozen=True)
class Compressed(Message, wire="vector"):
    """A compressed flat vector. A subclass is a frozen dataclass of tensors, numbers, text or bytes.

    Fields may come from an untrusted sender: ``__post_init__`` checks what is cheap to check, ``dense`` the rest. The
    tensors are on the device of the vector; those of a received message are on the CPU.
    """

    holds_messages: ClassVar[bool] = False
    """Whether a field may hold another message."""

    def __post_init__(self) -> None:
        require(type(self) is not Compressed, "a Compressed holds no vector; construct one of its subclasses.")

    @property
    def numbers(self) -> int:
        """The length of the vector."""
        raise NotImplementedError(f"{type(self).__name__} must define numbers, the length of its vector.")

    @property
    def needs_reference(self) -> bool:
        """Whether ``dense`` needs a reference: a vector near the one that was sent."""
        return False

    def dense(self, reference: Tensor | None = None) -> Tensor:
        """Return the decoded vector as a new tensor, in the original dtype; ``Lattice`` needs a ``reference``."""
        raise NotImplementedError(f"{type(self).__name__} must define dense(), which decodes it.")

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        """Add the decoded vector, times ``scale``, to ``target`` in place, on its device and in its dtype."""
        if self.needs_reference:
            raise BadMessage(f"a {type(self).__name__} needs a reference, and there is none here.")
        vector = self.of_length(target.numel()).on(target.device).dense().to(target.dtype)
        target.add_(vector if scale == 1.0 else vector.mul_(scale))

    @classmethod
    def add_all_into(cls, messages: Sequence[Self], target: Tensor, scales: Sequence[float]) -> None:
        """Add messages of this class, each times its scale, in their order, with the result of ``add_into`` of each."""
        for message, scale in zip(messages, scales, strict=True):
            message.add_into(target, scale)

    def on(self, device: torch.device) -> Self:
        """Return this message with its tensors on ``device``."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor) and t.device != device}
        return replace(self, **moved) if moved else self

    def of_length(self, numbers: int) -> Self:
        """Return this message if its vector has ``numbers`` numbers, else raise ``BadMessage``.

        A few bytes can encode a vector of any length: call this before ``dense`` of a message from an untrusted sender.
        """
        check_length(type(self), self.numbers, numbers)
        return self


def check_length(kind: type[Compressed], numbers: int, expected: int) -> None:
    """Raise ``BadMessage`` unless a message of ``kind`` with ``numbers`` numbers has the ``expected`` ones."""
    if numbers != expected:
        raise BadMessage(f"a {kind.__name__} of {numbers} numbers came where {expected} were expected.")


class Compressor(Spec, ABC):
    """Base class of compressors: how a flat vector is sent in fewer bytes.

    Derive a frozen dataclass. Override ``compress``, which returns a ``Compressed`` message, and ``contraction``, which
    returns how much of a vector survives; for an unbiased compressor also ``variance`` and ``is_unbiased``. One
    that draws random numbers sets ``is_deterministic`` to False. The message may be one of another compressor, as here,
    or a new subclass of ``Compressed``. ``tacit.testing.check_compressor`` tests the result.

    >>> from dataclasses import dataclass
    >>> import numpy as np, tacit, torch
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Threshold(tacit.Compressor):
    ...     least: float = 0.5
    ...     def compress(self, x, random, memory=None, shapes=()):
    ...         kept = torch.where(x.abs() < self.least, 0, x)
    ...         return tacit.TopK(fraction=1.0).compress(kept, random)
    ...     def contraction(self, dimension):
    ...         return None
    >>> Threshold().compress(torch.tensor([0.1, -2.0]), np.random.default_rng(0)).dense()
    tensor([ 0., -2.])
    """

    is_deterministic: ClassVar[bool] = True
    """Whether the message depends only on the vector (and the memory)."""
    is_unbiased: ClassVar[bool] = False
    """Whether E C(x) = x."""
    needs_reference: ClassVar[bool] = False
    """Whether ``dense`` needs a reference: a vector near the one that was sent."""

    @abstractmethod
    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> Compressed:
        """Return ``x``, flat and finite, as a message; ``shapes`` are those of the parameter tensors in it, in order.

        A NaN or an infinity raises ``ValueError`` with its position. ``x`` is not changed.
        """

    def compress_change(
        self,
        x: Tensor,
        estimate: Tensor,
        random: np.random.Generator,
        memory: Memory | None = None,
        shapes: Sequence[torch.Size] = (),
        dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Compressed:
        """Return c = C(x − estimate) and add it, times ``scale``, to ``estimate`` in place: the step of EF21.

        The difference is computed in the wider of the two dtypes and sent in ``dtype``, by default that of ``x``. If
        this raises, the estimate is unchanged.
        """
        message = self.compress((x - estimate).to(dtype or x.dtype), random, memory, shapes)
        message.add_into(estimate, scale)
        return message

    def compress_rows(
        self,
        rows: Tensor,
        randoms: Sequence[np.random.Generator],
        memories: Sequence[Memory],
        shapes: Sequence[torch.Size] = (),
    ) -> Sequence[Compressed]:
        """Return the message of each row, the one that ``compress`` returns for it.

        The simulator compresses the vectors of all ranks in one call. Override it where that is faster.
        """
        each = zip(rows.unbind(), randoms, memories, strict=True)
        return [self.compress(row, random, memory, shapes) for row, random, memory in each]

    def compress_changes(
        self,
        rows: Tensor,
        estimates: Tensor,
        randoms: Sequence[np.random.Generator],
        memories: Sequence[Memory],
        shapes: Sequence[torch.Size] = (),
        dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Sequence[Compressed]:
        """Return for each row what ``compress_change`` returns, and change its row of ``estimates`` alike."""
        each = zip(rows.unbind(), estimates.unbind(), randoms, memories, strict=True)
        return [
            self.compress_change(row, estimate, random, memory, shapes, dtype, scale)
            for row, estimate, random, memory in each
        ]

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        """Return the packed size of a typical message about ``numbers`` numbers of ``dtype``.

        Timing-only simulations use it instead of encoding. Here one vector of normally distributed numbers is encoded,
        and its size is kept. Override it where the size follows from the arguments.
        """
        key = (numbers, dtype, tuple(shapes))
        if key not in self._encoded_sizes:
            random = np.random.default_rng(0)
            vector = torch.from_numpy(random.standard_normal(numbers)).to(dtype)
            self._encoded_sizes[key] = self.compress(vector, random, {}, shapes).size_bytes
        return self._encoded_sizes[key]

    @cached_property
    def _encoded_sizes(self) -> dict[object, int]:
        return {}

    @abstractmethod
    def contraction(self, dimension: int) -> float | None:
        """Return α with E‖C(x) − x‖² ≤ (1 − α)‖x‖² for vectors of ``dimension`` numbers; None where there is none."""

    def variance(self, dimension: int) -> float | None:
        """Return ω with E C(x) = x and E‖C(x) − x‖² ≤ ω‖x‖²; None where C is biased."""
        return None

    def contracting_scale(self, dimension: int) -> float | None:
        """Return a factor of decoded vectors that makes the compressor contractive; None where there is none.

        It is 1 for a contractive compressor, and 1/(1+ω), with α = 1/(1+ω), for another unbiased one.
        """
        if self.contraction(dimension) is not None:
            return 1.0
        omega = self.variance(dimension)
        return None if omega is None else 1.0 / (1.0 + omega)

    def contraction_within(self, dimension: int) -> float | None:
        """Return an α for all vectors of at most ``dimension`` numbers; override where a shorter one can have less."""
        return self.contraction(dimension)

    def variance_within(self, dimension: int) -> float | None:
        """Return an ω for all vectors of at most ``dimension`` numbers; override where a shorter one can have more."""
        return self.variance(dimension)


def has_methods_of(spec: object, known: type, *names: str) -> bool:
    """Return whether ``spec`` uses these methods as ``known`` defines them: a subclass may override some of them.

    A form for many rows calls it, because it must not bypass an override of the form for one row.
    """
    kind = type(spec)
    for name in names:  # noqa: SIM110 - three times as fast as all()
        if getattr(kind, name) is not getattr(known, name):
            return False
    return True


def contraction_of_unbiased(omega: float) -> float | None:
    """Return α = 1 − ω of an unbiased compressor, or None for ω ≥ 1, where only its scaled form is contractive."""
    return 1 - omega if omega < 1 else None


def require_vector(x: Tensor) -> None:
    """Raise unless ``x`` is a flat vector of floating-point numbers."""
    require(x.dim() == 1, f"x has {x.dim()} dimensions; a compressor takes a flat vector: x.reshape(-1).")
    if x.dtype not in FLOATS:
        raise TypeError(f"x is {x.dtype}; compressors take float32, float64, float16 and bfloat16.")


def require_finite(x: Tensor, whole: Tensor | None = None) -> None:
    """Raise ``ValueError`` with the first position of ``whole`` (default ``x``) that holds NaN or an infinity."""
    if x.numel() and not math.isfinite(float(x.sum(dtype=wide(x.dtype)))):  # a finite sum has finite terms
        report_not_finite(x if whole is None else whole)


def report_not_finite(x: Tensor) -> None:
    """Raise ``ValueError`` with the first position that holds NaN or an infinity; return if there is none."""
    wrong = (~x.isfinite()).nonzero()
    if len(wrong):
        position = int(wrong[0])
        raise ValueError(
            f"x[{position}]={x[position].item()} is not finite ({len(wrong)} of {x.numel()} numbers are not); "
            f"only finite numbers can be compressed."
        )


def absent(numbers: int, dtype: torch.dtype) -> Tensor:
    """Return a vector that has a size but no contents, for messages of which only the size is needed."""
    return torch.empty(numbers, dtype=dtype, device="meta")


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pieces(numbers: int, shapes: Sequence[torch.Size]) -> Iterator[tuple[int, int, torch.Size]]:
    """Yield begin, end and shape of each parameter tensor within a flat vector of ``numbers`` numbers."""
    total = sum(shape.numel() for shape in shapes)
    require(
        total == numbers,
        f"the shapes hold {total} numbers and x {numbers}; give the shapes of all parameters, in order.",
    )
    begin = 0
    for shape in shapes:
        yield begin, begin + shape.numel(), shape
        begin += shape.numel()


def require_count(name: str, value: object, maximum: int = _MAXIMUM_LENGTH) -> None:
    """Raise ``ValueError`` unless a message's field is a whole number from 0 to ``maximum``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise ValueError(f"{name}={value!r} must be a whole number from 0 to {maximum}.")


def require_tensor(
    name: str, value: object, dtypes: Sequence[torch.dtype] = FLOATS, numbers: int | None = None, dimensions: int = 1
) -> None:
    """Raise ``ValueError`` unless a message's field is a tensor of such a dtype and size."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__} and must be a tensor.")
    if value.dtype not in dtypes or value.dim() != dimensions:
        raise ValueError(
            f"{name} is {value.dtype} with {value.dim()} dimensions; it must be of {list(dtypes)} with {dimensions}."
        )
    if numbers is not None and value.numel() != numbers:
        raise ValueError(f"{name} holds {value.numel()} numbers and must hold {numbers}.")
