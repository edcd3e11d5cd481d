"""A communication hook for ``DistributedDataParallel``: compressed gradients, bucket by bucket, during backward.

    state = tacit.hooks.Compression(tacit.TopK(fraction=0.01), tacit.EF21())
    model = DistributedDataParallel(model)
    model.register_comm_hook(state, tacit.hooks.compressed)          # tacit.hooks.ef21 is another name for it

DDP passes a bucket of gradients to the hook as soon as it is full. A thread encodes it, gathers all ranks' updates on
its own process group and decodes the mean, while autograd fills the next bucket. DDP regroups its buckets after the
first step, so that step is averaged uncompressed, as it is with torch's own compressing hooks. Store
``state.state_dict()`` in the checkpoint: without it the ranks lose their estimates.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from tacit.compression import TopK
from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.collective_bytes import handed_out_bytes
from tacit.core.message_reading import unpack
from tacit.core.randomness import Streams
from tacit.core.specs import Parameters
from tacit.core.state_io import restore, restore_generator, store, store_generator
from tacit.errors import NotFinite, TacitError
from tacit.runtime.exchanges import exchange_bytes, transfer_by_pairs

_FORMAT: Final = 1
_TIMEOUT: Final = timedelta(minutes=30)
"""Of an exchange, as in torch's own process groups."""


@dataclass
class _Job:
    index: int
    buffer: Tensor
    is_last: bool
    done: torch.futures.Future[Tensor]
    ready: Any = None  # the CUDA event after which the gradients are complete


@dataclass
class Compression(Parameters):
    """The state of one rank's hook, and its process group.

    Construct it on all ranks, in the same order, after ``init_process_group``.
    """

    compressor: Compressor = field(default_factory=lambda: TopK(fraction=0.01))
    feedback: Feedback = field(default_factory=EF21)
    rate: Callable[[], float] = lambda: 1.0  # γ, for ErrorFeedback only: lambda: optimizer.param_groups[0]["lr"]
    seed: int = 0
    group: dist.ProcessGroup | None = None  # None: all ranks

    def __post_init__(self) -> None:
        self.feedback.check(self.compressor)
        ranks = dist.get_process_group_ranks(self.group or dist.group.WORLD)
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._rank, self._size = ranks.index(dist.get_rank()), len(ranks)
        streams = Streams(self.seed)
        self._random = streams.numpy("hook", self._rank)
        self._shared_random: np.random.Generator = streams.numpy("shared hook")
        self._states: dict[int, FeedbackState] = {}  # by bucket
        self._stored: dict[str, Any] = {}  # of a checkpoint, for buckets that DDP has not passed yet
        self._steps, self.bytes_sent = 0, 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread. The next call of the hook starts another."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state between two steps: tensors, numbers and text."""
        return {
            "format": _FORMAT,
            "compressor": str(self.compressor),
            "feedback": str(self.feedback),
            "steps": self._steps,
            "size": self._size,
            "random": store_generator(self._random),
            "shared_random": store_generator(self._shared_random),
            "buckets": {str(index): store(state) for index, state in self._states.items()},
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned on this rank."""
        mine = {
            "format": _FORMAT,
            "compressor": str(self.compressor),
            "feedback": str(self.feedback),
            "size": self._size,
        }
        for name, value in mine.items():
            if stored[name] != value:
                raise TacitError(
                    f"the stored state has {name}={stored[name]}, the hook has {value}; construct the hook as before."
                )
        restore_generator(self._random, stored["random"])
        restore_generator(self._shared_random, stored["shared_random"])
        self._states, self._stored = {}, dict(stored["buckets"])

    # One bucket.

    def submit(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] = [buffer.device] if buffer.is_cuda else []
        job = _Job(bucket.index(), buffer, bucket.is_last(), torch.futures.Future(devices=devices))
        if buffer.is_cuda:
            job.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            job.ready.record()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tacit-hook", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return job.done

    @torch.no_grad()
    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if job.ready is not None:
                    job.ready.synchronize()
                self._average(job) if self._steps == 0 else self._compress(job)
                if job.is_last:
                    self._steps += 1
                job.done.set_result(job.buffer)
            except Exception as error:  # noqa: BLE001 - backward waits for the future and raises it
                job.done.set_exception(error)  # type: ignore[arg-type]

    def _average(self, job: _Job) -> None:
        wire = job.buffer.cpu()
        dist.all_reduce(wire, group=self._group)
        self.bytes_sent += 2 * (self._size - 1) * wire.nbytes // self._size
        job.buffer.copy_(wire.div_(self._size))

    def _compress(self, job: _Job) -> None:
        vector, rate = job.buffer, float(self.rate())
        if not bool(vector.sum().isfinite()):
            raise NotFinite(self._rank, self._steps + 1, float(vector[~vector.isfinite()][0]), "gradient")
        scale = self.feedback.scale(self.compressor, vector.numel())
        like = (vector.numel(), vector.dtype, vector.device)
        codec = Codec(self.compressor, self._random, self._shared_random, *like, scale=scale, rate=rate)
        state = self._state_of(job.index, vector)
        updates = self._gather(self.feedback.encode_update(state, vector, codec))
        vector.copy_(self.feedback.decode_updates(state, updates, codec))

    def _state_of(self, index: int, vector: Tensor) -> FeedbackState:
        if index not in self._states:
            fresh = self.feedback.begin(self._rank, self._size, vector)
            stored = self._stored.pop(str(index), None)
            self._states[index] = fresh if stored is None else restore(fresh, stored, None)
        state = self._states[index]
        known = next(iter({**state.own, **state.shared}.values()), vector)
        if known.shape != vector.shape:
            raise TacitError(
                f"DDP's bucket {index} had {known.numel()} numbers and has {vector.numel()} now; buckets must not "
                f"change: use a static graph and no find_unused_parameters."
            )
        return state

    def _all_to_all(self, *parts: Any) -> None:
        self._group.alltoall_base(*parts, dist.AllToAllOptions()).wait()

    def _gather(self, own: Update) -> list[Update]:
        """Return all ranks' updates, in rank order."""
        packed = [own.pack()] * self._size
        transfer = partial(transfer_by_pairs, self._group, place=self._rank, tag=0, timeout=_TIMEOUT)
        received = exchange_bytes(packed, self._rank, self._all_to_all, transfer, lambda _: None)
        self.bytes_sent += handed_out_bytes([len(part) for part in packed], self._rank)
        return [own if rank == self._rank else unpack(part) for rank, part in enumerate(received)]  # type: ignore[misc]


def compressed(state: Compression, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Return a future of the bucket's mean gradient: ``model.register_comm_hook(state, tacit.hooks.compressed)``."""
    return state.submit(bucket)


ef21 = compressed
"""The same hook: ``Compression()`` uses EF21 by default."""
