"""Random crops and flips: drawn from a stream of each worker, applied to mini-batches alone."""

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.registry import parse
from tacit.workloads.data.splits import Indices

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (60, 3, 8, 6), dtype=np.uint8), np.arange(60) % 3
AUGMENTED = workloads.images(X, Y, model="mlp", hidden=4, batch_size=5, crop_padding=2, flip=True)
PLAIN = workloads.images(X, Y, model="mlp", hidden=4, batch_size=5)


def drawn(workload: workloads.Workload, seed: int = 0, steps: int = 40, workers: int = 3) -> list[Indices]:
    return [sampler.take(steps) for sampler in workload.open(workers, Streams(seed)).samplers]


def moved(picture: torch.Tensor, top: int, left: int, flip: int, padding: int) -> torch.Tensor:
    """Pad, crop and reflect one picture, pixel by pixel."""
    _, height, width = picture.shape
    result = torch.zeros_like(picture)
    for row in range(height):
        for column in range(width):
            source = top + row - padding, left + (width - 1 - column if flip else column) - padding
            if 0 <= source[0] < height and 0 <= source[1] < width:
                result[:, row, column] = picture[:, source[0], source[1]]
    return result


def test_a_mini_batch_equals_its_pictures_moved_one_by_one() -> None:
    problem, ranks = AUGMENTED.open(3, Streams(0)), [2, 0]
    tokens = [problem.samplers[rank].take(1)[0] for rank in ranks]
    x, y = problem.collate(ranks, tokens)
    pictures, labels = problem.training.span(0, 60)
    assert x.shape == (2, 5, 3, 8, 6) and y.shape == (2, 5)
    for place, token in enumerate(tokens):
        for sample, (number, top, left, flip) in enumerate(token.tolist()):
            assert torch.equal(x[place, sample], moved(pictures[number], top, left, flip, 2))
            assert y[place, sample] == labels[number]


def test_all_shifts_and_both_orientations_occur_and_no_two_workers_draw_alike() -> None:
    first, second, _ = drawn(AUGMENTED)
    rows = first.reshape(-1, 4)
    assert first.shape == (40, 5, 4)
    assert len(np.unique(rows[:, 1:3], axis=0)) == 25 and set(rows[:, 3]) == {0, 1}
    assert not np.array_equal(first[..., 1:], second[..., 1:])


def test_draws_come_from_the_seed_and_not_from_how_many_are_taken_at_once() -> None:
    for one, same, other in zip(drawn(AUGMENTED), drawn(AUGMENTED), drawn(AUGMENTED, seed=1), strict=True):
        assert np.array_equal(one, same) and not np.array_equal(one, other)
    sampler = AUGMENTED.open(3, Streams(0)).samplers[0]
    pieces = [sampler.take(count) for count in (1, 7, 0, 30, 2)]
    assert np.array_equal(np.concatenate(pieces), drawn(AUGMENTED)[0])


def test_augmented_workers_see_the_samples_that_plain_ones_see() -> None:
    for augmented, plain in zip(drawn(AUGMENTED), drawn(PLAIN), strict=True):
        assert np.array_equal(augmented[..., 0], plain)


@pytest.mark.parametrize(("arguments", "highest"), [({"flip": True}, (0, 0, 1)), ({"crop_padding": 1}, (2, 2, 0))])
def test_crop_and_flip_are_independent(arguments: dict[str, int], highest: tuple[int, ...]) -> None:
    workload = workloads.images(X, Y, model="mlp", batch_size=5, **arguments)  # type: ignore[arg-type]
    assert drawn(workload)[0].max((0, 1))[1:].tolist() == list(highest)


def test_evaluation_uses_the_pictures_as_they_are() -> None:
    augmented, plain = AUGMENTED.open(2, Streams(0)), PLAIN.open(2, Streams(0))
    start = torch.cat([parameter.detach().flatten() for parameter in plain.module.parameters()])
    assert augmented.evaluate(start) == plain.evaluate(start)


def test_indices_describe_augmented_batches_and_a_problem_that_moves_keeps_them() -> None:
    problem = AUGMENTED.open(3, Streams(0))
    tokens = [sampler.take(1)[0] for sampler in problem.samplers]
    indices = problem.indices(range(3), tokens)
    assert indices is not None and indices.shape == (3, 5, 4)
    before = problem.collate(range(3), tokens)
    problem.to(torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(before, problem.gather(torch.from_numpy(indices)), strict=True))


def final(workload: tacit.Workload, strategy: tacit.Strategy, **settings: object) -> torch.Tensor:
    cluster = tacit.Cluster(workers=4, compute=tacit.Exponential(mean_s=0.01))
    run = tacit.simulate(workload, strategy, cluster=cluster, steps=12, seed=3, **settings)  # type: ignore[arg-type]
    return run.parameters


def test_results_do_not_depend_on_the_engine_or_on_steps_queued_ahead() -> None:
    class StepByStep(tacit.LocalSGD):
        def hook_free_steps(self, *_: object) -> int:
            return 0

    strategy = tacit.LocalSGD(period=tacit.Every(4))
    ahead = final(AUGMENTED, strategy, engine="vmap")
    torch.testing.assert_close(ahead, final(AUGMENTED, strategy, engine="loop"))
    torch.testing.assert_close(ahead, final(AUGMENTED, StepByStep(period=tacit.Every(4)), engine="vmap"))
    assert float((ahead - final(PLAIN, strategy, engine="vmap")).abs().max()) > 1e-3


def test_augmentation_is_written_in_the_notation() -> None:
    text = 'digits(model="cnn", crop_padding=1)'
    assert str(parse(text, "workloads")) == text
    assert str(workloads.cifar10("here", crop_padding=4, flip=True)) == 'cifar10("here", crop_padding=4, flip=True)'


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"crop_padding": -1}, "crop_padding=-1 must be at least 0"),
        ({"crop_padding": 6}, "crop_padding=6 must be less than the 8x6 pixels"),
        ({"flip": True, "batch_size": None}, "batch_size=None asks for the full gradient.*give a batch_size"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        workloads.images(X, Y, **arguments).open(2, Streams(0))  # type: ignore[arg-type]
