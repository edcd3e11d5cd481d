"""A small network, its optimizer and data, and loops over them, for tests on real processes."""

from __future__ import annotations

import torch
from torch import nn

import tacit

COMPRESSED = [
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21()),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Plus()),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Momentum(eta=0.3)),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Partial(probability=0.5)),
    tacit.CompressedGradient(compressor=tacit.TopK(k=5), feedback=tacit.EF21Bidirectional(master=tacit.QSGD(bits=8))),
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()),
    tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback()),
    tacit.CompressedGradient(compressor=tacit.LowRank(rank=1), feedback=tacit.EF21()),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(k=5)),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(k=5), feedback=tacit.EF21()),
]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def batches(rank: int, count: int, size: int = 5, first: int = 0) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(size, 4, generator=draws) for _ in range(first + count)][first:]


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor], session=None, samples=False
) -> None:
    for x in data:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if session is not None:
            session.observe(loss, samples=len(x) if samples else None)
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def tacit_run(strategy: tacit.Strategy, steps: int) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=steps):
        learn(model, optimizer, batches(tacit.rank(), steps))
    return flat(model)
