"""Process groups of the session: gloo, or NCCL if every worker has its own GPU.

The user's process groups are not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from tacit.runtime.exchanges import BackgroundTransfer, TransferThread, exchange_bytes, transfer_by_pairs

_OPEN_S: Final = 300.0
"""How long members wait for each other to open a group, unless told otherwise."""
_CLOSED: Final = "the group is closed"
_SIGNALS_S: Final = timedelta(seconds=1)
"""How long a wait may keep Python from handling signals."""
_NCCL_TIMEOUT: Final = timedelta(days=7)
"""Longer than any time-out of a call: NCCL's watchdog would end the process."""

Work = dist.Work | BackgroundTransfer


class Call:
    """A collective in progress. The group may be closed before it ends.

    group, number: identify the call; equal on all ``ranks``. timeout: None where the backend itself ends the call.
    """

    def __init__(
        self,
        work: Work,
        process_group: Any,
        timeout: timedelta | None,
        group: str,
        number: int,
        ranks: tuple[int, ...],
        *,
        is_broadcast: bool,
    ) -> None:
        self.group, self.number, self.ranks, self.is_broadcast = group, number, ranks, is_broadcast
        self._work: Work | None = work
        self._process_group = process_group
        self._timeout = timeout

    def is_completed(self) -> bool:
        return self._work is not None and self._work.is_completed()

    @property
    def has_succeeded(self) -> bool:
        """Whether the call has ended without an error."""
        try:
            return self._work is not None and self._work.is_completed() and bool(self._work.wait())
        except RuntimeError:
            return False

    def wait(self, gives_up: Callable[[], bool] | None = None) -> bool:
        """Wait until the call ends; raise ``RuntimeError`` if it fails or takes longer than its time-out.

        About once a second Python handles signals and ``gives_up`` is called. Return False if that is true: the call
        has not ended then.
        """
        if self._work is None:
            raise RuntimeError(_CLOSED)
        if self._timeout is not None:
            self._work.wait(self._timeout)
            return True
        try:
            while not self._ends_soon():
                if gives_up is not None and gives_up():
                    _never_destroy(self._process_group)
                    return False
        except BaseException:  # a signal handler raised it
            _never_destroy(self._process_group)
            raise
        self._work.wait()
        return True

    def _ends_soon(self) -> bool:
        """Wait a short time; return whether the call has ended, in success or failure."""
        assert self._work is not None  # and in no local variable, which a traceback would keep: see drop
        try:
            self._work.wait(_SIGNALS_S)
        except RuntimeError:
            return self._work.is_completed()
        return True

    def drop(self) -> None:
        """Release the call: a reference to it, even from a traceback, keeps the sockets of its group open."""
        self._work = self._process_group = None


class Group:
    """One process group of ``ranks``, among them this process.

    timeout_s: returns the time-out of a call when it begins. gloo gets it with the call: after a ``wait`` that gives up
    on an unfinished call, the destructor of the group would wait for that call.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        ranks: list[int],
        rank: int,
        *,
        address: str,
        backend: str,
        timeout_s: Callable[[], float],
        open_s: float = _OPEN_S,
    ) -> None:
        self._timeout_s, self._name, self._begun = timeout_s, name, 0
        self._calls: WeakSet[Call] = WeakSet()
        self.ranks, self.place, self.size, self.backend = ranks, ranks.index(rank), len(ranks), backend
        self._thread = TransferThread() if backend == "gloo" else None
        prefixed = PrefixStore(name, store)
        self._group: Any = (
            _gloo(prefixed, self.place, self.size, address, open_s)
            if backend == "gloo"
            else _nccl(prefixed, self.place, self.size)
        )

    def all_reduce(self, tensor: Tensor, timeout_s: float | None = None) -> Call:
        """Start to replace ``tensor`` by the sum over all ranks."""
        return self._begin("allreduce", dist.AllreduceOptions(), [tensor], timeout_s=timeout_s)

    def broadcast(self, tensor: Tensor, place: int) -> Call:
        options = dist.BroadcastOptions()
        options.rootRank = place
        return self._begin("broadcast", options, [tensor])

    def exchange_bytes(self, sent: Sequence[bytes], wait: Callable[[Call], object]) -> list[bytes]:
        """Send ``sent[j]`` to the j-th rank; return what each rank sent to this one."""
        device = torch.device("cuda" if self.backend == "nccl" else "cpu")
        transfer = self._all_to_all if self.backend == "nccl" else self._transfer_by_pairs
        return exchange_bytes(sent, self.place, self._all_to_all, transfer, wait, device)

    def _all_to_all(self, *arguments: Any) -> Call:
        return self._begin("alltoall_base", dist.AllToAllOptions(), *arguments)

    def _transfer_by_pairs(self, received: Tensor, sent: Tensor, sizes: list[int], lengths: list[int]) -> Call:
        if self._group is None or self._thread is None:
            raise RuntimeError(_CLOSED)
        self._begun += 1
        timeout, parts = timedelta(seconds=self._timeout_s()), (received, sent, sizes, lengths)
        transfer = partial(transfer_by_pairs, self._group, *parts, place=self.place, tag=self._begun, timeout=timeout)
        return self._started(self._thread.begin(transfer))

    def wire_device(self, tensor: Tensor) -> torch.device:
        """Return the device on which ``tensor`` must be to be sent: gloo sends host memory only."""
        return tensor.device if self.backend == "nccl" else torch.device("cpu")

    def close(self) -> None:
        if self.backend == "nccl" and self._group is not None:
            self._group.abort()
        if self._thread is not None:
            self._thread.close()
        self._group = self._thread = None
        for call in list(self._calls):
            call.drop()

    def _begin(self, name: str, options: Any, *arguments: Any, timeout_s: float | None = None) -> Call:
        """Start a call; gloo itself ends it at the time-out."""
        if self._group is None:
            raise RuntimeError(_CLOSED)
        timeout = timedelta(seconds=self._timeout_s() if timeout_s is None else timeout_s)
        if self.backend == "gloo":
            options.timeout = timeout
        self._begun += 1
        work = getattr(self._group, name)(*arguments, options)
        return self._started(work, timeout if self.backend == "nccl" else None, is_broadcast=name == "broadcast")

    def _started(self, work: Work, timeout: timedelta | None = None, *, is_broadcast: bool = False) -> Call:
        """Return the call of ``work``, which has begun as number ``_begun``."""
        call = Call(work, self._group, timeout, self._name, self._begun, tuple(self.ranks), is_broadcast=is_broadcast)
        self._calls.add(call)
        return call


def is_time_out(error: RuntimeError) -> bool:
    """Whether a call has failed because it took longer than its time-out."""
    text = str(error).lower()
    return "timed out" in text or "timeout" in text


def _never_destroy(process_group: Any) -> None:
    """Keep ``process_group`` until the process exits, also while the interpreter shuts down.

    gloo cannot cancel a call, and the destructor of a group waits for its calls.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(process_group))


def _gloo(store: Store, place: int, size: int, address: str, open_s: float) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=open_s)
    options._threads = 2
    return dist.ProcessGroupGloo(store, place, size, options)


def _nccl(store: Store, place: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _NCCL_TIMEOUT
    return dist.ProcessGroupNCCL(store, place, size, options)
