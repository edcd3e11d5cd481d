"""Process groups of our own: gloo, or NCCL where every worker has a GPU to itself. The user's groups are never touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

_HOST: Final = torch.device("cpu")
_TIMEOUT: Final = timedelta(days=7)
"""Of the group itself: how long to wait is decided call by call, because a gloo group does not survive a time-out."""


class Group:
    """One process group of the ranks ``ranks``, of whom this process is one."""

    def __init__(
        self, store: Store, name: str, ranks: list[int], rank: int, *, address: str, backend: str, timeout_s: float | None = None
    ) -> None:  # fmt: skip
        self.ranks, self.place, self.size, self.backend = ranks, ranks.index(rank), len(ranks), backend
        prefixed = PrefixStore(name, store)
        timeout = _TIMEOUT if timeout_s is None else timedelta(seconds=timeout_s)
        self._group: Any = _gloo(prefixed, self.place, self.size, address, timeout) if backend == "gloo" else _nccl(
            prefixed, self.place, self.size
        )  # fmt: skip

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Begin to replace ``tensor`` by the sum over all ranks."""
        work: dist.Work = self._group.allreduce([tensor])
        return work

    def broadcast(self, tensor: Tensor, place: int) -> dist.Work:
        options = dist.BroadcastOptions()
        options.rootRank = place
        work: dist.Work = self._group.broadcast([tensor], options)
        return work

    def swap(self, given: Sequence[bytes], wait: Callable[[dist.Work], object]) -> list[bytes]:
        """Give ``given[j]`` to the j-th rank and return what every rank gave to this one."""
        return swap(self._group, given, wait, torch.device("cuda" if self.backend == "nccl" else "cpu"))

    def wire_device(self, tensor: Tensor) -> torch.device:
        """Where a buffer must lie to travel: gloo moves host memory only."""
        return tensor.device if self.backend == "nccl" else torch.device("cpu")

    def shut(self) -> None:
        if self.backend == "nccl" and self._group is not None:
            self._group.abort()
        self._group = None


def swap(
    group: Any, given: Sequence[bytes], wait: Callable[[dist.Work], object], device: torch.device = _HOST
) -> list[bytes]:
    """Give ``given[j]`` to the j-th rank of a process group, gloo's or NCCL's, and return what every rank gave to this one.

    Lengths travel first, because they differ; they are not counted anywhere. ``device``: where the group moves memory.
    """
    lengths = torch.tensor([len(part) for part in given], dtype=torch.int64, device=device)
    coming = torch.empty_like(lengths)
    wait(group.alltoall_base(coming, lengths, [], [], dist.AllToAllOptions()))
    sizes = coming.tolist()
    whole = torch.frombuffer(bytearray().join(given) or bytearray(1), dtype=torch.uint8)
    sent = whole[: int(lengths.sum())].to(device)
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    wait(group.alltoall_base(received, sent, sizes, lengths.tolist(), dist.AllToAllOptions()))
    return [part.numpy().tobytes() for part in torch.split(received.cpu(), sizes)]


def _gloo(store: Store, place: int, size: int, address: str, timeout: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    options._threads = 2
    return dist.ProcessGroupGloo(store, place, size, options)


def _nccl(store: Store, place: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return dist.ProcessGroupNCCL(store, place, size, options)
