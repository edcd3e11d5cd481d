"""Restrictions of a simulated script: output of rank 0 only, no loader processes, no process groups."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TextIO

import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tacit.errors import MisplacedCall

logger = logging.getLogger("tacit")

_ASK: Final = "call tacit.rank() and tacit.size(), which work in simulated and real runs"
_TALK: Final = "leave communication to the strategy; with session.reported_model(): evaluates the common model"
_INSTEAD: Final = {
    "init_process_group": f"remove the call (tacit.attach opens its own groups) and {_ASK}",
    "init_device_mesh": f"remove the call (tacit.attach opens its own groups) and {_ASK}",
    "destroy_process_group": "remove the call; session.close() closes all groups",
    "get_rank": "call tacit.rank()",
    "get_world_size": "call tacit.size()",
    "new_group": _TALK,
    "barrier": "remove the call; the strategy synchronises the workers",
    **dict.fromkeys(
        (
            "all_gather",
            "all_gather_into_tensor",
            "all_gather_object",
            "all_reduce",
            "all_to_all",
            "all_to_all_single",
            "broadcast",
            "broadcast_object_list",
            "gather",
            "gather_object",
            "irecv",
            "isend",
            "monitored_barrier",
            "recv",
            "reduce",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "scatter",
            "scatter_object_list",
            "send",
        ),
        _TALK,
    ),
}
_WRAPPER: Final = (
    "pass the model without the wrapper; tacit.attach(model, optimizer, tacit.AllReduce()) has the same effect"
)


class RankZeroOutput:
    """A stream that writes while ``shows_output()`` is true and discards everything else."""

    def __init__(self, stream: TextIO, shows_output: Callable[[], bool]) -> None:
        self._stream, self._shows_output = stream, shows_output

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._shows_output() else len(text)

    def writelines(self, lines: list[str]) -> None:
        if self._shows_output():
            self._stream.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded(shows_output: Callable[[], bool], line: Callable[[], str]) -> Iterator[None]:
    """Enforce the restrictions within the context; ``line`` returns the current line of the script."""
    with ExitStack() as undone:
        for name in ("stdout", "stderr"):
            undone.enter_context(_replaced(sys, name, RankZeroOutput(getattr(sys, name), shows_output)))
        undone.enter_context(_replaced(DataLoader, "__init__", _without_processes(DataLoader.__init__)))
        refusal = _refusal("DistributedDataParallel", _WRAPPER, line)
        undone.enter_context(_replaced(DistributedDataParallel, "__init__", refusal))
        for name, instead in _INSTEAD.items():
            if hasattr(torch.distributed, name):
                refusal = _refusal(f"torch.distributed.{name}", instead, line)
                undone.enter_context(_replaced(torch.distributed, name, refusal))
        yield


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _refusal(name: str, instead: str, line: Callable[[], str]) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise MisplacedCall(f"{line()}: {name}() needs a process group, and a simulated worker has none; {instead}.")

    return refuse


def _without_processes(init: Callable[..., None]) -> Callable[..., None]:
    """Return DataLoader's constructor without ``num_workers`` and related arguments; it warns once."""
    signature, has_warned = inspect.signature(init), False

    def without(*given: Any, **named: Any) -> None:
        nonlocal has_warned
        bound = signature.bind(*given, **named)
        wanted = bound.arguments.get("num_workers", 0)
        if wanted:
            for name in ("num_workers", "timeout", "prefetch_factor", "persistent_workers", "multiprocessing_context"):
                bound.arguments.pop(name, None)
            if not has_warned:
                has_warned = True
                logger.warning("num_workers=%s is treated as 0: simulated workers load their data themselves", wanted)
        init(*bound.args, **bound.kwargs)

    return without
