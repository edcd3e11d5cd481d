"""The records of all workers of a run that ends early, collected without collectives: groups are closed by then.

Every worker publishes its own record through the launcher's store. The lowest rank that is not lost collects them.
"""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from typing import Final

from tacit.errors import Interrupted, PeerLost, RunError, TimedOut
from tacit.session.backend import SessionBackend

_ASKED_S: Final = 10.0
"""How long after the end began to wait for the records of workers whose processes still run, if the run was asked to
end. A launcher kills a worker 30 seconds after it has asked it to end, and up to ten may have passed by then."""
_FAILED_S: Final = 1.0
"""The same after a failure, of which every worker is to tell its script soon."""
_LOOK_S: Final = 0.02
_PIECE: Final = 1 << 22
"""Characters of a value: the store refuses values of 8 MiB."""
_RECORD, _COMPLETE = "last record", "last record is complete"


def publish_record(backend: SessionBackend, record: bytes, error: BaseException) -> None:
    """Publish this worker's record; do nothing where the others cannot want it, or the store is gone."""
    may_go_on = backend.membership is not None or backend.start_exchange is not None
    if not _has_others(backend) or (may_go_on and not isinstance(error, RunError | KeyboardInterrupt)):
        return
    text = base64.b64encode(record).decode()
    pieces = [text[begin : begin + _PIECE] for begin in range(0, len(text), _PIECE)]
    with suppress(RuntimeError):
        backend.published(_COMPLETE)  # notices at once that the store is gone
        for i, piece in enumerate(pieces):
            backend.publish(f"{_RECORD}/{i}", [backend.rank, piece])
        backend.publish(_COMPLETE, [backend.rank, len(pieces)])


def collect_records(backend: SessionBackend, record: bytes, error: BaseException, begun_s: float) -> list[bytes]:
    """Return the records of all workers that publish theirs in time; on ranks that do not collect, ``record`` alone.

    begun_s: when the end began, as ``time.monotonic`` says. Workers whose processes have ended, or that ``error`` names
    as lost or missing, are not waited for.
    """
    lost = error.ranks if isinstance(error, PeerLost) and error.reason is None else ()
    missing = error.missing if isinstance(error, TimedOut) else ()
    is_first = not any(rank not in lost for rank in range(backend.rank))
    if not (_has_others(backend) and is_first and isinstance(error, RunError | KeyboardInterrupt)):
        return [record]
    is_asked = isinstance(error, Interrupted | KeyboardInterrupt)
    ends_s = begun_s + (_ASKED_S if is_asked else _FAILED_S)
    awaited = {rank for rank in backend.live_ranks if rank not in (*lost, *missing, backend.rank)}
    while True:
        gone = {rank for rank in awaited if backend.is_gone(rank)}  # before the look: the order matters
        complete = dict(backend.published(_COMPLETE))
        if backend.rank not in complete:  # its own is not there: the store is gone
            return [record]
        if not awaited - gone - set(complete) or time.monotonic() > ends_s:
            return _found(backend, complete, record)
        time.sleep(_LOOK_S)


def _has_others(backend: SessionBackend) -> bool:
    return backend.world == "processes" and backend.size > 1  # the worker of a simulation has no process of its own


def _found(backend: SessionBackend, pieces: dict[int, int], own: bytes) -> list[bytes]:
    """Return the published records in rank order, and this worker's ``own``. pieces: of each rank."""
    texts: dict[int, str] = {}
    for i in range(max(pieces.values(), default=0)):
        for rank, piece in backend.published(f"{_RECORD}/{i}"):
            if i < pieces.get(rank, 0):
                texts[rank] = texts.get(rank, "") + piece
    records = {rank: base64.b64decode(text) for rank, text in texts.items()} | {backend.rank: own}
    return [records[rank] for rank in sorted(records)]
