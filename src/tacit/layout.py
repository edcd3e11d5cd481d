"""How a module's parameters lie in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of parameters laid end to end, in the module's own order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    dimension: int

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Describe the trainable parameters of ``module``; tied weights appear once."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        offsets, total = [], 0
        for _, parameter in named:
            offsets.append(total)
            total += parameter.numel()
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named), tuple(offsets), total)

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
