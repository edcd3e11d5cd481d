"""Lifetime of pyzmq's thread that releases buffers sent without a copy.

pyzmq starts one such thread per process and never ends it. A closed run leaves no thread, so the last endpoint of the
process ends it, unless it was running before the first endpoint.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Final

from zmq.utils.garbage import gc as collector

_RELEASE_S: Final = 1.0
_lock = Lock()
_endpoints = 0
_was_running = False


def add_endpoint() -> None:
    """Note that one more endpoint sends without copies."""
    global _endpoints, _was_running
    with _lock:
        if not _endpoints:
            _was_running = collector.is_alive()
        _endpoints += 1


def remove_endpoint() -> None:
    """Note that an endpoint has closed its sockets; the last one ends the thread once every buffer is released."""
    global _endpoints
    with _lock:
        _endpoints -= 1
        if _endpoints or _was_running:
            return
        deadline_s = time.monotonic() + _RELEASE_S
        while collector.refs and time.monotonic() < deadline_s:
            time.sleep(0.001)
        if not collector.refs:  # stopping the thread while zmq holds a buffer would crash
            collector.stop()
