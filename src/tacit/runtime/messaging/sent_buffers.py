"""The thread with which pyzmq gives back buffers that were sent without a copy.

pyzmq starts one per process and keeps it for ever. A run that is closed leaves no thread behind, so the last post in
the process ends it, unless somebody else's zmq had started it before us.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Final

from zmq.utils.garbage import gc as collector

_PATIENCE_S: Final = 1.0
_lock = Lock()
_posts = 0
_was_there = False


def enter() -> None:
    """One more post will send without copies."""
    global _posts, _was_there
    with _lock:
        if not _posts:
            _was_there = collector.is_alive()
        _posts += 1


def leave() -> None:
    """A post has closed all its sockets; the last one ends the thread once every buffer has been given back."""
    global _posts
    with _lock:
        _posts -= 1
        if _posts or _was_there:
            return
        deadline_s = time.monotonic() + _PATIENCE_S
        while collector.refs and time.monotonic() < deadline_s:
            time.sleep(0.001)
        if not collector.refs:  # stopping it under a buffer that is still out would crash
            collector.stop()
