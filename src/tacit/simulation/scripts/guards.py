"""What a script may not do, or does differently, while it is simulated: output of one rank, no loader processes, no
process groups.
"""

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

_ASK: Final = "ask tacit.rank() and tacit.size(), which answer in every world"
_TALK: Final = "leave talking to the strategy; with session.reported_model(): evaluates the common model"
_INSTEAD: Final = {
    "init_process_group": f"leave it out (tacit.attach opens groups of its own) and {_ASK}",
    "init_device_mesh": f"leave it out (tacit.attach opens groups of its own) and {_ASK}",
    "destroy_process_group": "leave it out; session.close() leaves no group behind",
    "get_rank": "write tacit.rank()",
    "get_world_size": "write tacit.size()",
    "new_group": _TALK,
    "barrier": "leave it out; the strategy waits where it must",
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
    "leave the model as it is; tacit.attach(model, optimizer, tacit.AllReduce()) does what the wrapper does"
)


class RankZeroOutput:
    """A stream that passes on what is written while ``is_heard()``, and swallows the rest."""

    def __init__(self, stream: TextIO, is_heard: Callable[[], bool]) -> None:
        self._stream, self._is_heard = stream, is_heard

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._is_heard() else len(text)

    def writelines(self, lines: list[str]) -> None:
        if self._is_heard():
            self._stream.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded(is_heard: Callable[[], bool], line: Callable[[], str]) -> Iterator[None]:
    """Hold these rules for everything that runs inside; ``line`` names the script's line that is being executed."""
    with ExitStack() as undone:
        for name in ("stdout", "stderr"):
            undone.enter_context(_replaced(sys, name, RankZeroOutput(getattr(sys, name), is_heard)))
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
        raise MisplacedCall(
            f"{line()}: {name}() works on real process groups only, and a simulated worker has none; {instead}."
        )

    return refuse


def _without_processes(init: Callable[..., None]) -> Callable[..., None]:
    """Return DataLoader's constructor with ``num_workers`` and what goes with it taken out; said once."""
    signature, is_said = inspect.signature(init), False

    def without(*given: Any, **named: Any) -> None:
        nonlocal is_said
        bound = signature.bind(*given, **named)
        wanted = bound.arguments.get("num_workers", 0)
        if wanted:
            for name in ("num_workers", "timeout", "prefetch_factor", "persistent_workers", "multiprocessing_context"):
                bound.arguments.pop(name, None)
            if not is_said:
                is_said = True
                logger.warning("num_workers=%s is taken as 0: simulated workers load their data themselves", wanted)
        init(*bound.args, **bound.kwargs)

    return without
