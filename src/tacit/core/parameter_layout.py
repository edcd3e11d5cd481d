"""The layout of a module's parameters in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of the parameters in one flat vector, in the order of the module."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    dimension: int

    def __hash__(self) -> int:
        return hash(self.dimension)  # hooks look up ``cut`` in every step, and a hash of all fields takes longer

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Describe the trainable parameters of ``module``; tied weights appear once."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        offsets, total = [], 0
        for _, parameter in named:
            offsets.append(total)
            total += parameter.numel()
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named), tuple(offsets), total)

    @cache  # noqa: B019 - few layouts, and hooks call this in every step
    def cut(self, parts: int) -> tuple[tuple[int, int], ...]:
        """Return begin and end of ``parts`` ranges of similar length that divide no parameter."""
        if parts == 1:
            return ((0, self.dimension),)
        if parts > len(self.names):
            raise ValueError(
                f"shards={parts} is more than the {len(self.names)} parameter tensors; use at most that many."
            )
        bounds, edges = [0], [*self.offsets, self.dimension]
        for part in range(1, parts):
            free = [e for e in edges if e > bounds[-1] and edges.index(e) <= len(self.names) - (parts - part)]
            bounds.append(min(free, key=lambda edge: abs(edge - self.dimension * part / parts)))
        return tuple(pairwise((*bounds, self.dimension)))

    @cache  # noqa: B019
    def part(self, parts: int, place: int) -> Layout:
        """Return the layout of one of the ranges of ``cut``, with offsets from its begin."""
        begin, end = self.cut(parts)[place]
        inside = [at for at, offset in enumerate(self.offsets) if begin <= offset < end]
        return Layout(
            tuple(self.names[at] for at in inside),
            tuple(self.shapes[at] for at in inside),
            tuple(self.offsets[at] - begin for at in inside),
            end - begin,
        )

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of ``flat`` (``[..., dimension]``) by parameter name, leading dimensions kept."""
        lead = flat.shape[:-1]
        return {
            name: flat[..., offset : offset + shape.numel()].view(*lead, *shape)
            for name, shape, offset in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def join(self, parts: dict[str, Tensor], out: Tensor) -> None:
        """Write tensors by name (with the leading dimensions of ``out``) into the flat ``out``."""
        lead = out.dim() - 1
        for name, shape, offset in zip(self.names, self.shapes, self.offsets, strict=True):
            part = parts[name]
            out[..., offset : offset + shape.numel()] = part.flatten(lead) if shape else part.unsqueeze(-1)
