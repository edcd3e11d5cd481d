"""The character GPT: windows of text, their division, and a causal model."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.errors import BadData
from tacit.workloads.gpt import CharacterGPT

TEXT = "the quick brown fox jumps over the lazy dog – " * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "pangram.txt.gz"
    file.write_bytes(gzip.compress(TEXT.encode()))
    return file


def test_a_sample_is_a_window_and_its_targets_are_one_further(path: Path) -> None:
    problem = workloads.text(path, context=8, width=16, batch_size=3).open(2, Streams(0))
    token = problem.samplers[1].take(1)[0]
    x, y = problem.collate([1], [token])
    letters = sorted(set(TEXT))
    for start, window, targets in zip(token, x[0], y[0], strict=True):
        assert "".join(letters[code] for code in window) == TEXT[start : start + 8]
        assert "".join(letters[code] for code in targets) == TEXT[start + 1 : start + 9]


def test_contiguous_workers_have_their_own_stretch_of_the_first_nine_tenths(path: Path) -> None:
    problem = workloads.text(path, context=8).open(3, Streams(0))
    starts = len(TEXT) * 9 // 10 - 8
    assert np.array_equal(np.concatenate(problem.shards), np.arange(starts))


def test_loss_and_validation_loss_begin_near_a_uniform_guess(path: Path) -> None:
    problem = workloads.text(path, context=8, width=16).open(2, Streams(0))
    start = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    measured = problem.evaluate(start)
    assert problem.metric_name == "validation loss"
    assert measured.loss == pytest.approx(np.log(len(set(TEXT))), abs=0.1)
    assert measured.metric == pytest.approx(measured.loss, abs=0.1)
    assert measured.gradient_norm_squared is None
    assert len(problem.evaluated) == 256 and len(problem.held_out) == len(TEXT) - len(TEXT) * 9 // 10 - 8


def test_a_few_steps_of_training_lower_the_loss(path: Path) -> None:
    problem = workloads.text(path, layers=1, context=8, width=16).open(1, Streams(0))
    optimizer = torch.optim.Adam(problem.module.parameters(), lr=1e-2)
    for _ in range(30):
        x, y = problem.collate([0], [problem.samplers[0].take(1)[0]])
        optimizer.zero_grad()
        problem.module(x[0], y[0]).backward()
        optimizer.step()
    trained = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    assert problem.evaluate(trained).metric < 2.5 < np.log(len(set(TEXT)))


def test_no_prediction_depends_on_what_follows() -> None:
    model = CharacterGPT(11, layers=2, heads=2, width=8, context=6)
    codes = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = torch.tensor([[1, 2, 3, 9, 9, 9]])
    assert torch.allclose(model(codes)[0, :3], model(changed)[0, :3])
    assert not torch.allclose(model(codes)[0, 3:], model(changed)[0, 3:])


def test_a_text_that_is_too_short_or_no_text_is_told(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a" * 100)
    with pytest.raises(BadData, match="its last tenth has 10 characters and validation needs more than context=64"):
        workloads.text(short).open(1, Streams(0))
    short.write_bytes(b"fine\nnot \xff fine")
    with pytest.raises(BadData, match=r"short\.txt, line 2: byte 0xff is not text"):
        workloads.text(short).open(1, Streams(0))
    with pytest.raises(BadData, match="there is no such file"):
        workloads.text(tmp_path / "nowhere.txt").open(1, Streams(0))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"heads": 3}, "width=64 must be a multiple of heads=3"),
        ({"split": "sorted"}, "split='sorted' does not divide a text, which has no labels"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        workloads.text("a.txt", **arguments)  # type: ignore[arg-type]
