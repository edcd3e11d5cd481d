"""Training data in memory: tensors that give out any of their rows, and arrays as users pass them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import require

_CHUNK, _CUDA_CHUNK = 1 << 12, 1 << 16  # most samples in one chunk of an evaluation
_CHUNK_NUMBERS = 1 << 22  # most numbers in its inputs
_CUDA_BYTES_PER_NUMBER = 1 << 11  # memory of the GPU for each of them: activations outnumber inputs, and others use it


class Samples(Protocol):
    """A fixed number of samples, any of which can be taken as a batch ``(x, y)``."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the samples with these numbers, stacked along the first dimension."""

    def span(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Return the consecutive samples ``start:stop``."""

    def to(self, device: torch.device) -> Samples: ...


class TensorSamples:
    """Inputs ``x`` and targets ``y``, one row per sample."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.contiguous(), y.contiguous()

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self.x.index_select(0, indices), self.y.index_select(0, indices)

    def span(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return self.x[start:stop], self.y[start:stop]

    def to(self, device: torch.device) -> TensorSamples:
        return TensorSamples(self.x.to(device), self.y.to(device))


class WindowSamples:
    """Windows of ``context`` codes of a text, the codes one further as targets; window i begins at ``starts[i]``."""

    def __init__(self, codes: Tensor, starts: Tensor, context: int) -> None:
        self.codes, self.starts, self.context = codes, starts, context
        self._offsets = torch.arange(context + 1, device=codes.device)

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        windows = self.codes[self.starts.index_select(0, indices)[:, None] + self._offsets]
        return windows[:, :-1], windows[:, 1:]

    def span(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return self.take(torch.arange(start, min(stop, len(self)), device=self.codes.device))

    def to(self, device: torch.device) -> WindowSamples:
        return WindowSamples(self.codes.to(device), self.starts.to(device), self.context)


def chunk_length(samples: Samples) -> int:
    """Return how many samples an evaluation passes through a model at once; the device decides, never measured time."""
    parts = samples.span(0, 1)
    most, most_numbers = _chunk_limits(parts[0].device)
    return max(1, min(most, most_numbers // max(1, sum(part.numel() for part in parts))))


def _chunk_limits(device: torch.device) -> tuple[int, int]:
    """Return the most samples and the most numbers in the inputs of one chunk."""
    if device.type != "cuda":
        return _CHUNK, _CHUNK_NUMBERS
    memory_bytes = torch.cuda.get_device_properties(device).total_memory
    return _CUDA_CHUNK, max(_CHUNK_NUMBERS, memory_bytes // _CUDA_BYTES_PER_NUMBER)


@dataclass(frozen=True, eq=False, repr=False)
class Arrays:
    """Inputs and targets given by the user; equal when their contents are, printed by their shape."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        require(self.x.dim() >= 1, f"x has shape {tuple(self.x.shape)} and must have one row per sample.")
        require(
            self.y.dim() >= 1 and len(self.x) == len(self.y),
            f"x has {len(self.x)} rows and y has shape {tuple(self.y.shape)}; every sample needs one target.",
        )
        require(len(self.x) > 0, "x and y are empty; at least one sample is needed.")

    @classmethod
    def of(cls, pair: object, name: str = "data") -> Arrays:
        """Read ``(x, y)``, each a tensor, an array or nested lists; ``name`` is the argument to blame."""
        if isinstance(pair, Arrays):
            return pair
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name} must be a pair (x, y) of arrays or tensors, not {type(pair).__name__}.")
        return cls(_tensor(pair[0], f"{name}[0]"), _tensor(pair[1], f"{name}[1]"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arrays):
            return NotImplemented
        same_kind = self.x.dtype == other.x.dtype and self.y.dtype == other.y.dtype
        return same_kind and torch.equal(self.x, other.x) and torch.equal(self.y, other.y)

    def __hash__(self) -> int:
        return hash((self.x.shape, self.y.shape))

    def __repr__(self) -> str:
        return f"<{'x'.join(str(size) for size in self.x.shape)} array>"


Source = str | os.PathLike[str] | Arrays | tuple[Any, Any]
"""Where a user's samples come from: a path, or a pair of arrays or tensors."""


def source_of(data: Source) -> str | Arrays:
    """Return a path as a string, or a pair of arrays as ``Arrays``."""
    return os.fspath(data) if isinstance(data, str | os.PathLike) else Arrays.of(data)


def label_array(y: Tensor) -> NDArray[Any] | None:
    """Return one-dimensional targets as an array to split by, or None where a sample has several."""
    return y.cpu().numpy() if y.dim() == 1 else None


def scale_of(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of ``x`` over the dimensions ``over``; the deviation of a constant is infinity."""
    std, mean = torch.std_mean(x, dim=over, keepdim=True, correction=0)
    # A constant feature may show a rounding error of deviation, which must not be blown up to size 1.
    return mean, torch.where(x.amax(over, keepdim=True) > x.amin(over, keepdim=True), std, torch.inf)


def standardize(x: Tensor, others: tuple[Tensor, ...], over: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Shift and scale all by the mean and deviation of ``x`` over the dimensions ``over``; constants become 0."""
    mean, deviation = scale_of(x, over)
    return tuple((part - mean) / deviation for part in (x, *others))


def _tensor(values: object, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} of type {type(values).__name__} is not an array of numbers; a sparse matrix: toarray()."
        )
    return torch.as_tensor(array if array.flags.writeable else array.copy())
