"""Random crops and horizontal flips of training pictures: drawn by the worker's sampler, applied on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.core.randomness import Streams
from tacit.errors import require
from tacit.workloads.data.samples import Samples
from tacit.workloads.data.sampling import EpochSampler
from tacit.workloads.data.splits import Indices


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the size of a picture from the picture padded with zeros, and random horizontal flips."""

    crop_padding: int
    flip: bool

    def sampler(self, shard: Indices, batch_size: int, streams: Streams, rank: int) -> AugmentedSampler:
        """Return the sampler of ``rank``: the same samples as without augmentation, and draws from a second stream."""
        return AugmentedSampler(
            shard, batch_size, streams.numpy("batches", rank), self, streams.numpy("augmentation", rank)
        )


def augmentation_of(crop_padding: int, flip: bool, batch_size: int | None) -> Augmentation | None:
    """Return the augmentation with these parameters, None without any; raise ``ValueError`` if they do not fit."""
    require(crop_padding >= 0, f"crop_padding={crop_padding} must be at least 0; 0 leaves the pictures where they are.")
    if not crop_padding and not flip:
        return None
    require(
        batch_size is not None,
        f"crop_padding={crop_padding}, flip={flip} change every mini-batch and batch_size=None asks for the full "
        f"gradient, which is the same in every step; give a batch_size, or crop_padding=0 and flip=False.",
    )
    return Augmentation(crop_padding, flip)


class AugmentedSampler(EpochSampler):
    """Mini-batches of rows (sample number, top and left of its crop in the padded picture, 1 for a flip)."""

    def __init__(
        self,
        shard: Indices,
        batch_size: int,
        rng: np.random.Generator,
        augmentation: Augmentation,
        draws: np.random.Generator,
    ) -> None:
        super().__init__(shard, batch_size, rng)
        self._augmentation, self._draws = augmentation, draws

    def _draw(self) -> Indices:
        numbers = super()._draw()
        corners = self._draws.integers(0, 2 * self._augmentation.crop_padding + 1, (len(numbers), 2))
        flips = self._draws.integers(0, 2 if self._augmentation.flip else 1, len(numbers))
        return np.column_stack((numbers, corners, flips))


class AugmentedPictures:
    """Pictures of which ``take`` returns the crops and flips of an ``AugmentedSampler``, and ``span`` the originals."""

    def __init__(self, pictures: Samples, crop_padding: int) -> None:
        self.pictures, self._padding = pictures, crop_padding
        x, _ = pictures.span(0, 1)
        height, width = x.shape[-2:]
        require(
            crop_padding < min(height, width),
            f"crop_padding={crop_padding} must be less than the {height}x{width} pixels of a picture; "
            f"otherwise a crop may contain none of them.",
        )
        self._rows, self._columns = (torch.arange(size, device=x.device) for size in (height, width))
        self._reflected = self._columns.flip(0)

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        numbers, top, left, flips = indices.unbind(1)
        x, y = self.pictures.take(numbers)
        rows = top[:, None] + self._rows
        columns = left[:, None] + torch.where(flips[:, None] > 0, self._reflected, self._columns)
        padded = pad(x, (self._padding,) * 4)
        pixels = (rows[:, :, None] * padded.shape[-1] + columns[:, None, :]).flatten(1)
        return padded.flatten(2).gather(2, pixels[:, None].expand(-1, x.shape[1], -1)).view_as(x), y

    def span(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return self.pictures.span(start, stop)

    def to(self, device: torch.device) -> AugmentedPictures:
        return AugmentedPictures(self.pictures.to(device), self._padding)
