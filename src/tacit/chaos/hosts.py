"""Network namespaces for a run whose workers are cut off: one per worker, and one with the switch and the launcher.

worker 0         hub              worker 1
eth0 ── veth ── [bridge] ── veth ── eth0          nothing in the machine's own namespace, no way out
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tacit.errors import TacitError

_NETWORK: Final = "192.168.79"
HUB_ADDRESS: Final = f"{_NETWORK}.254"
"""Where the launcher's store is reached."""
_CLONE_NEWUTS: Final = 0x04000000
_CLONE_NEWNET: Final = 0x40000000


def refused() -> str | None:
    """Return why namespaces cannot be made here; None where they can."""
    if shutil.which("ip") is None:
        return "the command ip is not found; install iproute2"
    return None if os.geteuid() == 0 else "network namespaces need root"


class Hosts:
    """The namespaces of one run."""

    def __init__(self, prefix: str, workers: int) -> None:
        self.prefix, self.workers = prefix, workers
        self.hub = f"{prefix}-hub"

    def command(self, words: list[str]) -> list[str]:
        """Return the command line that runs ``words`` at the hub."""
        return ["ip", "netns", "exec", self.hub, *words]

    def cut(self, seat: int) -> None:
        """Let no packet of ``seat`` pass."""
        _ip("-n", self.hub, "link", "set", f"port{seat}", "down")

    def mend(self, seat: int) -> None:
        """Let packets of ``seat`` pass again."""
        _ip("-n", self.hub, "link", "set", f"port{seat}", "up")

    def make(self) -> None:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{HUB_ADDRESS}/24", "dev", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")
        for seat in range(self.workers):
            own = f"{self.prefix}-{seat}"
            _ip("netns", "add", own)
            _ip("-n", self.hub, "link", "add", f"port{seat}", "type", "veth", "peer", "name", "eth0", "netns", own)
            _ip("-n", self.hub, "link", "set", f"port{seat}", "master", "bridge", "up")
            _ip("-n", own, "link", "set", "lo", "up")
            _ip("-n", own, "addr", "add", f"{_NETWORK}.{seat + 1}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in (self.hub, *(f"{self.prefix}-{seat}" for seat in range(self.workers))):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def hosts(workers: int) -> Iterator[Hosts]:
    """Make the namespaces of a run, and remove them at its end."""
    made = Hosts(f"chaos-{os.getpid()}", workers)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def enter(prefix: str, seat: int) -> None:
    """Move this process into the namespace of ``seat``, with a host name of its own. Before it has a socket."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", f"{prefix}-{seat}").open() as namespace:
        _demand(libc.setns(namespace.fileno(), _CLONE_NEWNET), "setns")
    _demand(libc.unshare(_CLONE_NEWUTS), "unshare")
    socket.sethostname(f"worker{seat}")


def _demand(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TacitError(f"ip {' '.join(words)}: {done.stderr.strip()}; plans with cut need network namespaces.")
