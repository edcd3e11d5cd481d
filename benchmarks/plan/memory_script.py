"""The script whose memory is measured: an MLP of about WIDTH² parameters, as a user would train it.

    RANK=… WORLD_SIZE=2 … python benchmarks/plan/memory_script.py WIDTH OPTIMIZER 'LocalSGD(period=Every(8))' FILE

Rank 0 writes the largest memory of each rank into FILE as JSON. ``tacit probe`` takes the same words without FILE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit.registry import parse

STEPS = 20


def main() -> None:
    width, optimizer_name, strategy, *file = sys.argv[1:]
    torch.manual_seed(0)
    size = int(width)
    model = nn.Sequential(nn.Linear(32, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    session = tacit.attach(model, optimizer, parse(strategy, "strategies"), steps=STEPS, security="plain")
    while not session.is_done:
        inputs, labels = torch.randn(16, 32), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        session.observe(loss.detach())
        optimizer.step()
    run = session.close()
    if session.rank == 0 and file:
        Path(file[0]).write_text(json.dumps(run.record["peak_memory_bytes"]) + "\n")


if __name__ == "__main__":
    main()
