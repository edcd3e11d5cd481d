"""Every split is a partition, and each keeps the promise of its name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.workloads.data.splits import SPLITS, split_samples


@given(
    workers=st.integers(1, 20),
    extra=st.integers(0, 100),
    classes=st.integers(1, 7),
    split=st.sampled_from(SPLITS),
    alpha=st.floats(0.01, 100),
    seed=st.integers(0, 2**32),
)
def test_a_split_gives_every_sample_to_exactly_one_worker_and_every_worker_a_sample(
    workers: int, extra: int, classes: int, split: str, alpha: float, seed: int
) -> None:
    count = workers + extra
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    shards = split_samples(count, workers, split, rng, labels, alpha)
    assert len(shards) == workers
    assert all(len(shard) > 0 and shard.dtype == np.int64 for shard in shards)
    assert sorted(np.concatenate(shards).tolist()) == list(range(count))


@given(count=st.integers(5, 100), seed=st.integers(0, 1000))
def test_splits_follow_from_the_generator(count: int, seed: int) -> None:
    targets = np.linspace(0, 1, count)
    for split in SPLITS:
        first, second = (split_samples(count, 5, split, np.random.default_rng(seed), targets) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_contiguous_keeps_file_order_and_gives_the_remainder_to_the_last_worker() -> None:
    shards = split_samples(11, 3, "contiguous", np.random.default_rng(0))
    assert [shard.tolist() for shard in shards] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]


def test_shuffled_parts_differ_by_at_most_one_sample() -> None:
    sizes = [len(shard) for shard in split_samples(11, 3, "shuffled", np.random.default_rng(0))]
    assert sorted(sizes) == [3, 4, 4]


def test_sorted_is_stable_and_orders_by_label() -> None:
    shards = split_samples(6, 3, "sorted", np.random.default_rng(0), np.array([2, 1, 0, 2, 1, 0]))
    assert [shard.tolist() for shard in shards] == [[2, 5], [1, 4], [0, 3]]


def test_small_alpha_means_fewer_classes_per_worker() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_share(alpha: float) -> float:
        shards = split_samples(1000, 10, "dirichlet", np.random.default_rng(1), labels, alpha)
        return float(np.mean([np.bincount(labels[shard]).max() / len(shard) for shard in shards]))

    assert largest_share(0.05) > 0.5 > 0.2 > largest_share(100.0)


def test_dirichlet_groups_real_targets_by_quantile() -> None:
    targets = np.random.default_rng(0).standard_normal(1000)
    shards = split_samples(1000, 4, "dirichlet", np.random.default_rng(1), targets, 0.05)
    means = [float(targets[shard].mean()) for shard in shards]
    assert max(means) - min(means) > 0.5  # of shuffled shards of this size they would differ by about 0.1


@pytest.mark.parametrize("split", ["dirichlet", "sorted"])
def test_a_split_by_label_needs_labels(split: str) -> None:
    with pytest.raises(ValueError, match="divides by label and this workload has no labels; use split="):
        split_samples(5, 2, split, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"targets of shape \(5, 2\)"):
        split_samples(5, 2, split, np.random.default_rng(0), np.zeros((5, 2)))


def test_more_workers_than_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="workers=6 exceeds the 5 training samples"):
        split_samples(5, 6, "shuffled", np.random.default_rng(0))


def test_an_unknown_split_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"split='contigous' .* did you mean 'contiguous'"):
        split_samples(5, 2, "contigous", np.random.default_rng(0))


def test_alpha_must_be_positive() -> None:
    with pytest.raises(ValueError, match="alpha=0 must be a positive number"):
        split_samples(5, 2, "dirichlet", np.random.default_rng(0), np.zeros(5), alpha=0)
