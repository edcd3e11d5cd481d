"""Long temporary vectors are reused, and never while anyone can still read them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import tacit
from tacit.compression.feedback import Codec
from tacit.compression.kernels.accumulation import accumulate
from tacit.core.host_memory import copied, scratch

CPU, LONG = torch.device("cpu"), 2**19


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_is_reused_once_no_view_is_left():
    first = scratch(LONG, torch.float64, CPU)
    view, before = first[10:20], address(first)
    del first
    assert address(scratch(LONG, torch.float64, CPU)) != before  # the view still reads it
    del view
    taken = [scratch(LONG, torch.float64, CPU) for _ in range(3)]
    assert before in map(address, taken) and len(set(map(address, taken))) == 3


def test_threads_do_not_share_memory():
    found: list[int] = []
    mine = scratch(LONG, torch.float32, CPU)
    mine.zero_()
    before = address(mine)
    del mine
    thread = threading.Thread(target=lambda: found.append(address(scratch(LONG, torch.float32, CPU))))
    thread.start()
    thread.join()
    kept = scratch(LONG, torch.float32, CPU)
    assert address(kept) == before and found != [before]


def test_a_copy_has_the_numbers_in_another_dtype():
    x = torch.linspace(0, 1, LONG, dtype=torch.float64)
    assert torch.equal(copied(x, torch.float32), x.to(torch.float32))


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_accumulating_in_pieces_is_accumulating(dtype: torch.dtype, decay: float):
    random = torch.Generator().manual_seed(0)
    vector = torch.randn(200_001, generator=random).to(dtype)
    error = torch.randn(200_001, generator=random, dtype=torch.float64)
    expected = error * decay + vector * 0.3
    rounded = accumulate(error, vector, 0.3, decay, dtype)
    assert torch.equal(error, expected) and torch.equal(rounded, expected.to(dtype))


@pytest.mark.parametrize(
    ("feedback", "compressor"),
    [
        (tacit.EF21(), tacit.TopK(fraction=0.01)),
        (tacit.EF21Momentum(eta=0.5), tacit.TopK(fraction=0.01)),
        (tacit.ErrorFeedback(), tacit.LowRank(rank=2)),
        (tacit.ErrorFeedback(), tacit.TopK(fraction=0.01)),
        (tacit.NoFeedback(), tacit.QSGD(bits=8)),
    ],
    ids=str,
)
def test_the_mean_of_one_exchange_survives_the_next(feedback: tacit.Feedback, compressor: tacit.Compressor):
    """A caller may keep it: the memory of a mean is not given out again."""
    shapes, random = (torch.Size([640, 512]),), np.random.default_rng(0)
    vectors = [torch.randn(640 * 512, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    codec = Codec(
        compressor, random, random, 640 * 512, torch.float32, CPU, shapes, feedback.scale(compressor, 640 * 512)
    )
    state = feedback.begin(0, 1, vectors[0])
    kept, copies = [], []
    for vector in vectors:
        mean = feedback.decode_updates(state, [feedback.encode_update(state, vector, codec)], codec)
        kept.append(mean)
        copies.append(mean.clone())
    assert all(torch.equal(mean, copy) for mean, copy in zip(kept, copies, strict=True))
    assert not torch.equal(kept[0], kept[1])
