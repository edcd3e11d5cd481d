"""Every built-in module gives the same gradients for many replicas at once as one by one, and has no buffers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.workloads import Workload

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((40, 6)), np.arange(40) % 2
PICTURES = RNG.integers(0, 256, (24, 3, 8, 8), dtype=np.uint8), np.arange(24) % 3

BUILT_IN: dict[str, Callable[[Path], Workload]] = {
    "quadratic": lambda _: workloads.quadratic(dimension=6, heterogeneity=1.0),
    "logistic l2": lambda _: workloads.logistic(ROWS, batch_size=5),
    "logistic nonconvex": lambda _: workloads.logistic(ROWS, regularizer="nonconvex", batch_size=5),
    "logistic full": lambda _: workloads.logistic(ROWS, batch_size=None),
    "least squares": lambda _: workloads.least_squares(ROWS, batch_size=5),
    "digits softmax": lambda _: workloads.digits(model="softmax", batch_size=5),
    "digits mlp": lambda _: workloads.digits(batch_size=5),
    "digits cnn": lambda _: workloads.digits(model="cnn", batch_size=5),
    "pictures resnet": lambda _: workloads.images(*PICTURES, model="resnet", batch_size=3),
    "pictures augmented": lambda _: workloads.images(*PICTURES, batch_size=3, crop_padding=2, flip=True),
    "text": lambda folder: workloads.text(written(folder), context=8, width=16, batch_size=3),
}


def written(folder: Path) -> Path:
    (folder / "text").write_text("to be, or not to be, that is the question: " * 10)
    return folder / "text"


@pytest.mark.parametrize("name", BUILT_IN)
def test_replicas_together_have_the_gradients_of_each_alone(name: str, tmp_path: Path) -> None:
    problem = BUILT_IN[name](tmp_path).open(4, Streams(1))
    layout, ranks = problem.layout, [2, 0, 3]
    batch = problem.collate(ranks, [problem.samplers[rank].take(1)[0] for rank in ranks])
    start = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    noise = torch.randn(3, layout.dimension, dtype=start.dtype, generator=torch.Generator().manual_seed(0))
    replicas = start + 0.1 * noise

    def loss(flat: Tensor, *parts: Tensor) -> Tensor:
        return functional_call(problem.module, layout.split(flat), parts)

    together = vmap(grad(loss))(replicas, *batch)
    alone = torch.stack([grad(loss)(replicas[i], *(part[i] for part in batch)) for i in range(3)])
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5)
    assert float(alone.norm()) > 0
    assert not list(problem.module.buffers())


@pytest.mark.parametrize("name", BUILT_IN)
def test_batches_have_the_size_their_sampler_promises(name: str, tmp_path: Path) -> None:
    problem = BUILT_IN[name](tmp_path).open(3, Streams(1))
    assert len(problem.samplers) == 3
    for rank, sampler in enumerate(problem.samplers):
        parts = problem.collate([rank], [sampler.take(1)[0]])
        assert all(part.shape[0] == 1 for part in parts)
        assert name == "quadratic" or all(part.shape[1] == sampler.batch_size for part in parts)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_problem_that_moves_stays_the_same(name: str, tmp_path: Path) -> None:
    problem = BUILT_IN[name](tmp_path).open(2, Streams(1))
    start = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    before = problem.evaluate(start)
    problem.to(torch.device("cpu"))
    assert problem.evaluate(start) == before
