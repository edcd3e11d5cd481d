"""Evaluations pass the data through the model in chunks whose length the device decides, and read results once."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.workloads.data import samples
from tacit.workloads.data.samples import TensorSamples, chunk_length


class Reads(TorchDispatchMode):
    """Counts calls that wait for a number from the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("hidden", "reads"), [(8, 3), (600, 2)])  # with and without the norm of the gradient
def test_an_evaluation_reads_each_result_once(hidden: int, reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = workloads.digits(hidden=hidden).open(2, Streams(0))
    flat = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    whole = problem.evaluate(flat)
    monkeypatch.setattr(samples, "_CHUNK", 100)
    assert chunk_length(problem.training) == 100
    with Reads() as counted:
        parts = problem.evaluate(flat)
    assert counted.count == reads
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5) and parts.metric == whole.metric
    norms = parts.gradient_norm_squared, whole.gradient_norm_squared
    assert norms == (None, None) if hidden == 600 else norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize(("memory_bytes", "chunks"), [(139 << 30, 1), (80 << 30, 2), (4 << 30, 15)])
def test_a_large_gpu_takes_20_000_cifar_pictures_in_few_chunks(
    memory_bytes: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory_bytes))
    most, numbers = samples._chunk_limits(torch.device("cuda"))
    assert math.ceil(20_000 / min(most, numbers // (3 * 32 * 32 + 1))) == chunks


def test_small_samples_are_limited_by_their_number() -> None:
    assert chunk_length(TensorSamples(torch.zeros(5, 2), torch.from_numpy(np.zeros(5)))) == 4096
