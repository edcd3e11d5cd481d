"""Freed memory of processes that train: it stays with the process, so that equal steps take equal times."""

from __future__ import annotations

import ctypes
import platform
import resource

import pytest
import torch
from torch import nn

import tacit
from tests.runtime.processes import together

BLOCKS, SIZE_BYTES = 16, 8 * 2**20  # more than glibc keeps by itself


def page_faults_of_blocks() -> int:
    """Return the page faults of allocating and freeing the same blocks again and again."""
    library, before = ctypes.CDLL(None), 0
    library.malloc.restype = ctypes.c_void_p
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [ctypes.c_void_p(library.malloc(ctypes.c_size_t(SIZE_BYTES))) for _ in range(BLOCKS)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE_BYTES)
        for block in blocks:
            library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def before_and_after_attaching() -> tuple[int, int]:
    before, model = page_faults_of_blocks(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=1):
        after = page_faults_of_blocks()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return before, after


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to keep memory")
def test_attaching_keeps_freed_memory():
    ((before, after),) = together(1, before_and_after_attaching)
    fewest = BLOCKS * SIZE_BYTES // 2**21 // 2  # a page may have 2 MiB
    assert before > fewest > after
