"""Gradients that are evaluated at the first use of their numbers, together with all others that wait.

A learner sends its gradient to a server, which uses it in an update or drops it. Sending needs only the size. So a
worker that has skipped the update gets its gradient as a ``DeferredTensor``. The first operation that needs the numbers
lets the engine evaluate all deferred gradients in one call. A gradient that no message holds any more is not evaluated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from tacit.workloads.workload import Token


class DeferredGradient:
    """A gradient of one worker and step. evaluate: sets ``value``. like: a tensor of its size, dtype and device."""

    __slots__ = ("__weakref__", "_evaluate", "like", "parameters", "rank", "step", "token", "value")

    def __init__(self, rank: int, step: int, token: Token, evaluate: Callable[[], None], like: Tensor) -> None:
        self.rank, self.step, self.token, self._evaluate, self.like = rank, step, token, evaluate, like
        self.parameters: Tensor | None = None  # where it is taken; None: at the worker's row, not changed since
        self.value: Tensor | None = None

    def evaluated(self) -> Tensor:
        """Return the gradient, which the caller must not change."""
        if self.value is None:
            self._evaluate()
        assert self.value is not None
        return self.value


class DeferredGradients:
    """The deferred gradients of all workers that are not evaluated yet, as far as they are still referenced."""

    def __init__(self) -> None:
        self._references: dict[int, list[weakref.ref[DeferredGradient]]] = {}  # by rank, in the order of steps

    def __contains__(self, rank: int) -> bool:
        return rank in self._references

    def add(self, gradient: DeferredGradient) -> None:
        self._references.setdefault(gradient.rank, []).append(weakref.ref(gradient))

    def take(self) -> list[DeferredGradient]:
        """Remove and return all."""
        taken, self._references = self._references, {}
        return [one for references in taken.values() for reference in references if (one := reference()) is not None]

    def keep_row(self, rank: int, row: Tensor) -> None:
        """Copy the row of ``rank``, which is about to change, for the gradients that are taken at it."""
        held = [one for reference in self._references.pop(rank) if (one := reference()) is not None]
        if held:
            self._references[rank] = [weakref.ref(one) for one in held]
        at_row = [one for one in held if one.parameters is None]
        if at_row:
            parameters = row.clone()
            for one in at_row:
                one.parameters = parameters


class DeferredTensor(Tensor):
    """A part of a deferred gradient. Size, dtype and device are known; other operations evaluate it at once.

    A part ``[begin:end]`` and a clone of a deferred tensor are deferred, too.
    """

    _gradient: DeferredGradient
    _begin: int
    _size: int
    _origin: DeferredTensor | None  # the tensor that this is a view of
    _tensor: Tensor | None  # the numbers, after their first use

    @staticmethod
    def of(
        gradient: DeferredGradient, begin: int = 0, end: int | None = None, origin: DeferredTensor | None = None
    ) -> DeferredTensor:
        """Return a part of ``gradient``, without arguments all of it. origin: the tensor that it is a view of."""
        like = gradient.like
        size = (len(like) if end is None else end) - begin
        own: DeferredTensor = Tensor._make_wrapper_subclass(
            DeferredTensor, (size,), dtype=like.dtype, device=like.device
        )
        own._gradient, own._begin, own._size, own._origin, own._tensor = gradient, begin, size, origin, None
        return own

    @property
    def _is_waiting(self) -> bool:
        """Whether the numbers are still unused, also through a tensor that this is a view of."""
        return self._tensor is None and (self._origin is None or self._origin._is_waiting)

    def _evaluated(self) -> Tensor:
        """Return the ordinary tensor with the numbers; the same one in every call."""
        if self._tensor is None:
            origin = self._origin
            if origin is None:
                self._tensor = self._gradient.evaluated()[self._begin : self._begin + self._size].clone()
            else:
                begin = self._begin - origin._begin
                self._tensor = origin._evaluated()[begin : begin + self._size]
        return self._tensor

    # What messages need. These are methods because the way through torch takes several times as long.

    def dim(self) -> int:
        return 1

    def numel(self) -> int:
        return self._size

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size((self._size,))

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._size * self._gradient.like.itemsize

    def clone(self, **options: Any) -> Tensor:
        if options or not self._is_waiting:
            return self._evaluated().clone(**options)
        return DeferredTensor.of(self._gradient, self._begin, self._begin + self._size)

    def __getitem__(self, index: Any) -> Tensor:
        if not isinstance(index, slice) or index.step not in (None, 1) or not self._is_waiting:
            return self._evaluated()[index]
        begin, end, _ = index.indices(self._size)
        if end - begin == self._size:
            return self
        return DeferredTensor.of(self._gradient, self._begin + begin, self._begin + max(begin, end), origin=self)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in _WITHOUT_NUMBERS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs or {})
        own = {name: _ordinary(value) for name, value in kwargs.items()} if kwargs else {}
        return function(*[_ordinary(value) for value in args], **own)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return function(*map(_ordinary, args), **{name: _ordinary(value) for name, value in (kwargs or {}).items()})


_ATTRIBUTES: Final = ("dtype", "device", "layout", "ndim", "itemsize", "requires_grad", "is_cpu", "is_cuda")
_WITHOUT_NUMBERS: Final = frozenset(
    {Tensor.size, Tensor.is_floating_point, *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES)}
)


def _ordinary(value: Any) -> Any:
    """Return ``value`` with ordinary tensors in place of deferred ones."""
    if isinstance(value, DeferredTensor):
        return value._evaluated()
    return type(value)(map(_ordinary, value)) if type(value) in (list, tuple) else value
