"""Small training scripts for tests of plans."""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """
import argparse

import torch
from torch import nn

import tacit

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--fail-at", type=int)
parser.add_argument("--silent", action="store_true")
parser.add_argument("--out")
options = parser.parse_args()
torch.manual_seed(0)
wanted = torch.randn(4, 1)
draws = torch.Generator().manual_seed(100 + tacit.rank())
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
with tacit.attach(model, optimizer, STRATEGY, steps=options.steps) as session:
    for step in range(options.steps):
        x = torch.randn(8, 4, generator=draws)
        loss = ((model(x) - x @ wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if not options.silent:
            session.observe(loss)
        optimizer.step()
        if step == options.fail_at:
            raise ArithmeticError("the data ended")
if options.out and tacit.rank() == 0:
    session.run.save(options.out)
"""
"""Linear regression of four numbers. STRATEGY stands for an expression."""


def script(strategy: str = "tacit.LocalSGD(period=tacit.Every(4))") -> str:
    """Return the script with a strategy of its own."""
    return SCRIPT.replace("STRATEGY", strategy)
