"""``gather`` of ``indices`` returns what ``collate`` returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.workloads.array_problem import ArrayProblem
from tests.workloads.test_evaluation_chunks import Reads
from tests.workloads.test_replicas import BUILT_IN


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "logistic full"])
def test_gathered_indices_are_the_collated_batches(name: str, tmp_path: Path) -> None:
    problem, ranks = BUILT_IN[name](tmp_path).open(4, Streams(1)), [2, 0, 3]
    tokens = [problem.samplers[rank].take(1)[0] for rank in ranks]
    indices = problem.indices(ranks, tokens)
    assert indices is not None and indices.dtype == np.int64 and len(indices) == 3
    with Reads() as reads:
        gathered = problem.gather(torch.from_numpy(indices))
    assert reads.count == 0  # a CUDA graph cannot contain one
    collated = problem.collate(ranks, tokens)
    alone = [problem.collate([rank], [token]) for rank, token in zip(ranks, tokens, strict=True)]
    for place, part in enumerate(gathered):
        assert torch.equal(part, collated[place])
        assert torch.equal(part, torch.cat([batch[place] for batch in alone]))


@pytest.mark.parametrize("name", ["digits mlp", "quadratic"])
def test_indices_of_several_mini_batches_are_one_call(name: str, tmp_path: Path) -> None:
    problem, ranks = BUILT_IN[name](tmp_path).open(3, Streams(0)), [2, 0]
    drawn = [problem.samplers[rank].take(4) for rank in ranks]
    together = problem.indices(ranks, drawn)
    assert together is not None and together.shape[:2] == (2, 4)
    for ahead in range(4):
        assert np.array_equal(together[:, ahead], problem.indices(ranks, [tokens[ahead] for tokens in drawn]))


def test_full_gradients_have_no_indices() -> None:
    problem = workloads.digits(batch_size=None).open(2, Streams(0))
    assert problem.indices([0], problem.samplers[0].take(1)) is None


class Negated(ArrayProblem):
    """A problem of a user, who overrides ``collate`` and knows nothing of indices."""

    def collate(self, ranks: Sequence[int], tokens: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
        x, y = super().collate(ranks, tokens)
        return -x, y


@dataclass(frozen=True)
class NegatedDigits(tacit.Workload):
    name = "negated"

    def open(self, workers: int, streams: Streams) -> Negated:
        problem = workloads.digits(model="softmax").open(workers, streams)
        return Negated(problem.module, problem.training, problem.shards, batch_size=4, streams=streams)


def test_a_problem_that_overrides_collate_alone_has_no_indices() -> None:
    problem = NegatedDigits().open(2, Streams(0))
    token = problem.samplers[0].take(1)[0]
    assert problem.indices([0], [token]) is None
    assert torch.equal(problem.collate([0], [token])[0][0], -problem.training.x[token])
    run = tacit.simulate(NegatedDigits(), tacit.AllReduce(), cluster=tacit.Cluster(workers=4), steps=3)
    assert run.steps == 3


def test_a_problem_without_gather_names_the_way_out() -> None:
    class Bare(workloads.Problem):
        collate = evaluate = None  # type: ignore[assignment]

    assert Bare().indices([0], [None]) is None
    with pytest.raises(NotImplementedError, match=r"Bare has no gather\(\); use collate\(\)"):
        Bare().gather(torch.zeros(1, dtype=torch.int64))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; none is here")
@pytest.mark.parametrize("name", ["digits mlp", "pictures augmented", "quadratic", "text"])
def test_a_cuda_graph_contains_gather(name: str, tmp_path: Path) -> None:
    problem, ranks = BUILT_IN[name](tmp_path).open(4, Streams(1)), range(4)
    problem.to(torch.device("cuda"))
    first, second = ([sampler.take(1)[0] for sampler in problem.samplers] for _ in range(2))
    indices = torch.from_numpy(problem.indices(ranks, first)).cuda()
    problem.gather(indices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = problem.gather(indices)
    indices.copy_(torch.from_numpy(problem.indices(ranks, second)))
    graph.replay()
    for part, expected in zip(captured, problem.collate(ranks, second), strict=True):
        assert torch.equal(part, expected)
