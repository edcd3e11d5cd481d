"""Digits and pictures: what is held out, how features are scaled, what is measured."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.workloads.array_problem import ArrayProblem
from tacit.workloads.models import ResNet20


def flat_start(problem: workloads.Problem) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])


@pytest.fixture(scope="module")
def digits_problem() -> ArrayProblem:
    return workloads.digits().open(4, Streams(0))


def test_a_fifth_of_the_digits_is_held_out_and_shared_with_nobody(digits_problem: ArrayProblem) -> None:
    assert (len(digits_problem.training), len(digits_problem.held_out)) == (1438, 359)
    raw = {row.tobytes() for row in load_digits().data}
    both = torch.cat((digits_problem.training.x, digits_problem.held_out.x)).flatten(1)
    assert len(both) == 1797 and len(torch.unique(both, dim=0)) == len(raw)


def test_the_held_out_digits_do_not_depend_on_the_seed(digits_problem: ArrayProblem) -> None:
    other = workloads.digits().open(4, Streams(99))
    assert torch.equal(digits_problem.held_out.x, other.held_out.x)
    assert not torch.equal(flat_start(digits_problem), flat_start(other))


def test_digits_are_standardised_by_the_training_part_alone(digits_problem: ArrayProblem) -> None:
    features = digits_problem.training.x.flatten(1)
    spread = features.std(0, correction=0)
    varies = spread > 0
    assert torch.allclose(features.mean(0), torch.zeros(64), atol=1e-5)
    assert torch.allclose(spread[varies], torch.ones(int(varies.sum())), atol=1e-5)
    assert 0 < int((~varies).sum()) < 10
    assert bool((digits_problem.held_out.x.flatten(1)[:, ~varies] == 0).all())
    assert float(digits_problem.held_out.x.mean().abs()) > 1e-4


@pytest.mark.parametrize(("model", "dimension"), [("softmax", 650), ("mlp", 4810), ("cnn", 6090)])
def test_models_have_the_documented_sizes(model: str, dimension: int) -> None:
    assert workloads.digits(model=model).open(1, Streams(0)).layout.dimension == dimension


def test_resnet_20_has_the_size_of_the_paper() -> None:
    pictures = np.zeros((2, 3, 32, 32), np.uint8)
    problem = workloads.images(pictures, [0, 9], model="resnet").open(1, Streams(0))
    assert problem.layout.dimension == 269_722  # He et al., table 6: 0.27 million


def test_blocks_of_resnet_20_start_as_their_shortcuts() -> None:
    block, x = ResNet20(3, 10).blocks[0], torch.rand(2, 16, 8, 8)
    assert torch.equal(block(x), x)
    torch.nn.init.ones_(block.second_norm.weight)
    assert not torch.equal(block(x), x)


def test_hidden_sets_the_width_of_the_mlp() -> None:
    assert workloads.digits(hidden=10).open(1, Streams(0)).layout.dimension == 64 * 10 + 10 + 10 * 10 + 10


def test_evaluation_is_the_mean_loss_over_all_training_digits(digits_problem: ArrayProblem) -> None:
    module = digits_problem.module
    measured = digits_problem.evaluate(flat_start(digits_problem))
    loss = module(digits_problem.training.x, digits_problem.training.y)
    gradient = torch.autograd.grad(loss, list(module.parameters()))
    assert measured.loss == pytest.approx(loss.item(), rel=1e-5)
    assert measured.gradient_norm_squared == pytest.approx(sum(float(g.square().sum()) for g in gradient), rel=1e-4)
    hits = module.predict(digits_problem.held_out.x).argmax(1) == digits_problem.held_out.y
    assert measured.metric == pytest.approx(float(hits.double().mean()))
    assert digits_problem.metric_name == "accuracy"


def test_a_gradient_over_budget_is_left_out() -> None:
    problem = workloads.digits(hidden=600).open(
        1, Streams(0)
    )  # 45,010 parameters times 1,438 samples is over 50 million
    assert problem.evaluate(flat_start(problem)).gradient_norm_squared is None


def test_opening_and_evaluating_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    problem = workloads.digits().open(2, Streams(0))
    problem.evaluate(flat_start(problem))
    assert torch.equal(before, torch.get_rng_state())


def test_equal_seeds_open_equal_problems() -> None:
    first, second = (workloads.digits(split="dirichlet").open(5, Streams(3)) for _ in range(2))
    assert torch.equal(flat_start(first), flat_start(second))
    for a, b in zip(first.samplers, second.samplers, strict=True):
        assert np.array_equal(a.take(1)[0], b.take(1)[0])


def test_collate_stacks_the_batches_of_the_ranks_asked_for(digits_problem: ArrayProblem) -> None:
    tokens = [sampler.take(1)[0] for sampler in digits_problem.samplers]
    x, y = digits_problem.collate([3, 1], [tokens[3], tokens[1]])
    assert x.shape == (2, 32, 1, 8, 8) and y.shape == (2, 32)
    assert torch.equal(x[0], digits_problem.training.x[tokens[3]])
    assert torch.equal(y[1], digits_problem.training.y[tokens[1]])


def test_sorted_workers_see_few_classes() -> None:
    problem = workloads.digits(split="sorted").open(10, Streams(0))
    assert all(len(problem.training.y[torch.from_numpy(shard)].unique()) <= 3 for shard in problem.shards)


def test_pictures_without_a_test_set_are_measured_on_the_training_set() -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
    problem = workloads.images(x, np.arange(20) % 3, model="softmax").open(2, Streams(0))
    assert problem.metric_name == "training accuracy"
    assert 0 <= problem.evaluate(flat_start(problem)).metric <= 1
    assert float(problem.training.span(0, 20)[0].mean()) == pytest.approx(0, abs=1e-5)
    assert problem.layout.dimension == 36 * 3 + 3


def test_bytes_stay_bytes_and_give_the_numbers_of_floats() -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (20, 3, 6, 6), dtype=np.uint8), np.arange(20) % 3
    x[:, 2] = 7  # a constant channel
    problems = [
        workloads.images(pictures, y, test=(pictures[:5], y[:5]), model="mlp", batch_size=4).open(2, Streams(0))
        for pictures in (x, x.astype(np.float32))
    ]
    for part in ("training", "held_out"):
        (a, _), (b, _) = (getattr(problem, part).span(0, 20) for problem in problems)
        assert a.dtype == b.dtype == torch.float32 and torch.equal(a, b)
        assert bool((a[:, 2] == 0).all())
    assert [problem.training.x.dtype for problem in problems] == [torch.uint8, torch.float32]
    assert problems[0].held_out.x.dtype == torch.uint8
    batches = [problem.collate([0, 1], [sampler.take(1)[0] for sampler in problem.samplers]) for problem in problems]
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    assert problems[0].evaluate(flat_start(problems[0])) == problems[1].evaluate(flat_start(problems[1]))


def test_test_pictures_are_scaled_like_the_training_pictures() -> None:
    x = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 2
    problem = workloads.images(x, labels, test=(x + 1, labels)).open(2, Streams(0))
    shift = (problem.held_out.x - problem.training.x).mean((0, 2, 3))
    assert torch.allclose(shift, 1 / x.std((0, 2, 3), correction=0), rtol=1e-4)
    assert problem.metric_name == "accuracy"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: workloads.digits(model="mpl"), "model='mpl' is unknown; did you mean 'mlp'"),
        (lambda: workloads.digits(model="resnet"), "model='resnet' is unknown"),
        (lambda: workloads.digits(hidden=0), "hidden=0 must be at least 1"),
        (lambda: workloads.digits(split="random"), "split='random' is not a way to divide samples"),
        (lambda: workloads.digits(batch_size=-1), "batch_size=-1 must be at least 1"),
        (lambda: workloads.images(np.zeros((2, 3)), [0, 1]), r"x of shape \(2, 3\) must be count x height"),
        (lambda: workloads.images(np.zeros((2, 3, 3)), [0.5, 1]), "y must hold one whole number from 0"),
        (
            lambda: workloads.images(np.zeros((2, 3, 3)), [0, 1], test=(np.zeros((2, 4, 4)), [0, 1])),
            r"test pictures have shape \(4, 4\)",
        ),
        (
            lambda: workloads.images(np.zeros((2, 3, 3)), [0, 1], model="cnn").open(1, Streams(0)),
            "needs at least 4x4 pixels, not 3x3",
        ),
    ],
)
def test_arguments_are_checked(make: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()  # type: ignore[operator]
