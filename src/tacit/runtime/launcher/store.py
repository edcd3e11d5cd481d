"""The store of a run, hosted by the launcher on a socket that it has bound itself.

torch binds a store to all interfaces. One on loopback cannot be reached from other machines.
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import TCPStore

from tacit.errors import TacitError
from tacit.runtime.messaging.limits import allow_descriptors

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 4096
_ANSWER = timedelta(seconds=30)
"""How long a call to the store may take."""


def hosted_store(host: str = LOOPBACK, port: int = 0) -> TCPStore:
    """Return a store in this process that is bound to ``host``, an address of this machine; port 0: any free one.

    Strangers may hold thousands of connections to it; workers, which inherit the limit of open files, still get in.
    """
    allow_descriptors()
    address = resolved(host)
    require_one_address(address)
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        where = f"{host}, port {port}," if port else host
        raise TacitError(
            f"--host {where} cannot be used ({error.strerror}); give an address of this machine, and a free port."
        ) from None
    port = int(bound.getsockname()[1])
    fd = bound.detach()
    return TCPStore(address, port, None, is_master=True, timeout=_ANSWER, wait_for_workers=False, master_listen_fd=fd)


def connected_store(host: str, port: int, patience_s: float) -> TCPStore:
    """Return a connection to the store of another machine's launcher."""
    try:
        store = TCPStore(
            host, port, None, is_master=False, timeout=timedelta(seconds=patience_s), wait_for_workers=False
        )
    except RuntimeError as error:
        raise TacitError(
            f"--join {host}:{port} does not answer within {patience_s:g} s; start tacit launch --host ADDRESS "
            f"on the first machine, and use the address and port that it prints."
        ) from error
    store.set_timeout(_ANSWER)
    return store


def resolved(host: str) -> str:
    """Return the IPv4 address of ``host``."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise TacitError(f"{host} is unknown ({error.strerror}); give an address such as 192.168.1.10.") from None


def require_one_address(address: str) -> None:
    """Raise for 0.0.0.0: the store would listen on all interfaces, and workers need one address to connect to."""
    if ipaddress.ip_address(address).is_unspecified:
        raise TacitError(
            f"--host {address} would open the store on every interface; give the address at which the other machines "
            f"reach this one."
        )


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
