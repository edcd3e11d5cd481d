"""Samplers pass through their shard epoch by epoch, in batches of one size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.workloads.data.sampling import EpochSampler, ShardSampler, check_batch_size


@given(size=st.integers(1, 50), batch_size=st.integers(1, 60), epochs=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_every_epoch_draws_every_sample_once(size: int, batch_size: int, epochs: int, seed: int) -> None:
    shard = 10 + np.arange(size)
    sampler = EpochSampler(shard, batch_size, np.random.default_rng(seed))
    assert sampler.batch_size == min(size, batch_size)
    batches = [sampler.take(1)[0] for _ in range(epochs * size)]  # a whole number of epochs whatever the batch size
    assert all(len(batch) == sampler.batch_size for batch in batches)
    for epoch in np.concatenate(batches).reshape(-1, size):
        assert sorted(epoch.tolist()) == shard.tolist()


def test_a_batch_inside_an_epoch_has_no_sample_twice() -> None:
    sampler = EpochSampler(np.arange(10), 3, np.random.default_rng(0))
    for number in range(1000):
        batch = sampler.take(1)[0]
        crosses_an_epoch = (3 * number) // 10 != (3 * number + 2) // 10
        assert crosses_an_epoch or len(set(batch.tolist())) == 3


def test_batches_stay_as_they_were_handed_out() -> None:
    sampler = EpochSampler(np.arange(700), 32, np.random.default_rng(0))
    held = [sampler.take(1)[0] for _ in range(50)]
    copies = [batch.copy() for batch in held]
    for _ in range(200):
        sampler.take(1)[0]
    assert all(np.array_equal(batch, copy) for batch, copy in zip(held, copies, strict=True))


def test_equal_seeds_give_equal_batches_and_epochs_differ() -> None:
    first, second = (EpochSampler(np.arange(2000), 2000, np.random.default_rng(7)) for _ in range(2))
    epochs = [first.take(1)[0] for _ in range(3)]
    assert all(np.array_equal(epoch, second.take(1)[0]) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])


def test_the_full_shard_is_the_same_batch_every_time() -> None:
    sampler = ShardSampler(np.array([3, 1, 2]))
    assert sampler.batch_size == 3
    assert sampler.take(1)[0] is sampler.take(1)[0]


def test_a_batch_size_below_one_names_the_way_to_the_full_gradient() -> None:
    with pytest.raises(ValueError, match="batch_size=0 must be at least 1; for the full gradient use batch_size=None"):
        check_batch_size(0)


@given(
    size=st.integers(1, 40), batch_size=st.integers(1, 50), counts=st.lists(st.integers(0, 30), min_size=1, max_size=5)
)
def test_batches_do_not_depend_on_how_many_are_taken_at_once(size: int, batch_size: int, counts: list[int]) -> None:
    shard = np.arange(size)
    together, apart = (EpochSampler(shard, batch_size, np.random.default_rng(3)) for _ in range(2))
    taken = [batch for count in counts for batch in together.take(count)]
    one_by_one = [apart.take(1)[0] for _ in taken]
    assert all(np.array_equal(a, b) for a, b in zip(taken, one_by_one, strict=True))
    assert all(len(batch) == min(batch_size, size) for batch in taken)
