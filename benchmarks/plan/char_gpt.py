"""A small GPT over characters in one file, after nanoGPT: AdamW with two groups, warm-up and cosine, clipped gradients.

    python char_gpt.py [--text FILE.gz] [--max-iters 400] [--out FOLDER]

It stands for a script that a user of tacit has: all but the three lines that are marked is as it would be without tacit.
The text is FILE, such as Shakespeare's plays, or one that is generated here.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

import tacit  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--text", help="a text, compressed with gzip")
parser.add_argument("--max-iters", type=int, default=400)
parser.add_argument("--plan", default="plan.toml")
parser.add_argument("--out", help="folder for the run")
args = parser.parse_args()

batch_size, block_size = 16, 64
n_layer, n_head, n_embd = 2, 4, 96
learning_rate, min_lr, warmup_iters = 3e-3, 3e-4, 20
weight_decay, beta1, beta2, grad_clip = 0.1, 0.9, 0.99, 1.0
rank = int(os.environ.get("RANK", "0"))


def generated_text(characters: int = 300_000) -> str:
    """Make sentences of invented words; which words follow a word is limited, so that there is something to learn."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "or")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(400)]
    following = {word: rng.choices(words, k=6) for word in words}
    parts, length, word = [], 0, words[0]
    while length < characters:
        sentence = []
        for _ in range(rng.randint(4, 12)):
            word = rng.choice(following[word])
            sentence.append(word)
        parts.append(" ".join(sentence).capitalize() + rng.choice([".\n", ". ", "! ", "? "]))
        length += len(parts[-1])
    return "".join(parts)


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, n_head, C // n_head).transpose(1, 2) for part in self.c_attn(x).split(n_embd, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return out


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(functional.gelu(self.c_fc(x)))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(n_embd), CausalSelfAttention()
        self.ln_2, self.mlp = nn.LayerNorm(n_embd), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n_layer))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    def configure_optimizer(self) -> torch.optim.AdamW:
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))


def get_lr(it: int) -> float:
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = min(1.0, (it - warmup_iters) / max(1, args.max_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def get_batch() -> tuple[Tensor, Tensor]:
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size + 1] for i in ix.tolist()])
    return x[:, :-1], x[:, 1:]


if args.text:
    with gzip.open(args.text, "rt", encoding="utf-8") as file:
        text = file.read()
else:
    text = generated_text()
stoi = {ch: i for i, ch in enumerate(sorted(set(text)))}
data = torch.tensor([stoi[c] for c in text])

torch.manual_seed(1337 + rank)
model = GPT(len(stoi))
optimizer = model.configure_optimizer()
session = tacit.attach(model, optimizer, args.plan, steps=args.max_iters)  # 2

iter_num = 0
while not session.is_done:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    x, y = get_batch()
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    session.observe(loss, samples=batch_size)  # 3
    optimizer.step()
    if iter_num % 50 == 0 and rank == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}")
    iter_num += 1
run = session.close()
if rank == 0 and args.out:
    run.save(args.out, overwrite=True)
