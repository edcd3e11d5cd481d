"""A small GPT over characters (Radford et al. 2019), without dropout, so that many replicas run as one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CharacterGPT(nn.Module):
    """Token and position embeddings, pre-norm blocks of causal attention and GELU, and a head of its own (not tied)."""

    def __init__(self, characters: int, *, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                # GPT-2's initialisation: projections back into the residual stream shrink with the number of blocks
                deviation = 0.02 / (2 * layers) ** 0.5 if name.endswith("out.weight") else 0.02
                nn.init.normal_(parameter, std=deviation)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the logits of each next character, ``[batch, length, characters]``."""
        stream = self.token(codes) + self.position[: codes.shape[-1]]
        logits: Tensor = self.head(self.norm(self.blocks(stream)))
        return logits


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to the stream it reads after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self._attend(self.attention_norm(stream))
        updated: Tensor = stream + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(stream))))
        return updated

    def _attend(self, stream: Tensor) -> Tensor:
        parts = self.queries_keys_values(stream).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in parts)
        # Written out: torch's fused attention has no batching rule and would run a vmap's replicas one by one.
        scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ values
        out: Tensor = self.attention_out(mixed.transpose(-2, -3).flatten(-2))
        return out


def next_character_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Mean cross-entropy of every next character, in nats."""
    return functional.cross_entropy(logits.flatten(0, -2), following.flatten())
