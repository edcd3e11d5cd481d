"""Liveness check: which processes of a run still exist, determined from sockets.

Every process holds a listening socket that it never accepts on, and a connection to each other process's socket. The
kernel keeps such a connection open while the process exists, also while it computes for minutes or is stopped, and
resets it when the process ends for any reason. So no process has to reply in time, and load does not matter.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final
from weakref import WeakSet

from tacit.runtime.environment import Environment

_CONNECT_S: Final = 5.0
_listeners: Final[WeakSet[socket.socket]] = WeakSet()


class Liveness:
    """One process's connections to all others. address: the IP at which others reach this process."""

    def __init__(self, environment: Environment, address: str) -> None:
        self._listener = socket.create_server((address, 0), backlog=environment.size + 8)
        _listeners.add(self._listener)
        environment.publish("listener", [address, self._listener.getsockname()[1], secrets.token_hex(4)])
        self._gone: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        listeners = environment.gather("listener")
        self.run_name: str = listeners[0][2]  # equal on all ranks, also when the store is gone
        for rank, (host, port, _) in enumerate(listeners):
            if rank != environment.rank:
                self._connect(rank, host, port)

    def is_gone(self, rank: int) -> bool:
        """Whether the process of ``rank`` has ended. A machine that cannot be reached does not count as gone."""
        if rank in self._connections:
            try:
                if not self._connections[rank].recv(1):
                    self._gone.add(rank)
            except BlockingIOError:
                pass
            except ConnectionError:
                self._gone.add(rank)
            except OSError:
                pass
        return rank in self._gone

    def close(self) -> None:
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        self._connections.clear()

    def _connect(self, rank: int, host: str, port: int) -> None:
        try:
            self._connections[rank] = connection = socket.create_connection((host, port), timeout=_CONNECT_S)
            connection.setblocking(False)
        except ConnectionRefusedError:
            self._gone.add(rank)
        except OSError:  # no route to that machine: its state stays unknown
            pass


def _close_listeners() -> None:
    """Close the parent's sockets in a forked child (a DataLoader worker), which may outlive its parent."""
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_close_listeners)
