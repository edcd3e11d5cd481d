"""Pool of communication buffers, reused once no view of them is left: new memory costs more than the copy into it."""

from __future__ import annotations

import torch
from torch import Tensor

_KEPT = 4


class ReusedBuffers:
    """Pool of flat buffers."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, numbers: int, dtype: torch.dtype, device: torch.device, *, pinned: bool = False) -> Tensor:
        """Return an unused buffer with undefined content."""
        for buffer in self._buffers:
            is_same_kind = buffer.numel() == numbers and buffer.dtype == dtype and buffer.device == device
            if is_same_kind and _is_free(buffer):
                return buffer[:]
        buffer = torch.empty(numbers, dtype=dtype, device=device, pin_memory=pinned)
        self._buffers = [*self._buffers[-(_KEPT - 1) :], buffer]
        return buffer[:]


def _is_free(buffer: Tensor) -> bool:
    """Whether only the pool holds the memory: its own tensor, and the handle that this check creates."""
    return torch._C._storage_Use_Count(buffer.untyped_storage()._cdata) <= 2
