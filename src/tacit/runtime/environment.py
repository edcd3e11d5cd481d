"""Environment of a process: its rank, the number of workers, and the store that they share."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from tacit.errors import Interrupted, PeerLost, TacitError, TimedOut
from tacit.runtime.launched import LaunchedLives

_stores: Final[dict[tuple[str, str], Store]] = {}  # kept as long as the process lives: rank 0 may host the store
SERVE: Final = "TACIT_SERVE"
"""Environment variable of a server process: ``tacit.attach`` serves there and does not return."""
LIFE: Final = "TACIT_LIFE"
"""Environment variable of a process that ``tacit launch`` started: the life of its seat."""
_LOOK_AGAIN_S: Final = (0.001, 0.02)  # soon at first, then less often
_attached = 0  # number of sessions so far; all ranks attach in the same order


class Environment:
    """Rank, size, and the launcher's store under a prefix of this session."""

    def __init__(self, timeout_s: float) -> None:
        global _attached
        self.rank, self.size, store = _find(timeout_s)
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.master = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
        self._prefix, self._launched = f"tacit/{restart}/{_attached}", store
        self.store = PrefixStore(self._prefix, store)
        self.timeout_s, self.store_is_gone = timeout_s, False
        self.is_asked_to_end: Callable[[], bool] = lambda: False  # by a signal
        self.has_ended: Callable[[int], bool] = lambda rank: False  # a member of the run, whose next life joins later
        self._lives = LaunchedLives(store)
        _attached += 1
        if LIFE in os.environ:
            self.skip_ended_runs()

    def skip_ended_runs(self) -> None:
        """Continue with the first run whose end has no cause: all workers that ``tacit launch`` starts again do."""
        number = 0
        while self.has("cause"):
            number += 1
            self.store = PrefixStore(f"{self._prefix}/{number}", self._launched)

    def publish(self, key: str, value: object) -> None:
        if self.store_is_gone:  # a call would take long to fail
            raise RuntimeError(f"the store at {self.master} is gone")
        self.store.set(f"{key}/{self.rank}", json.dumps(value))

    def gather(self, key: str, ranks: Sequence[int] | None = None) -> list[Any]:
        """Return what ``ranks`` (None: all) published under ``key``; wait until all have."""
        ranks = range(self.size) if ranks is None else ranks
        names = [f"{key}/{rank}" for rank in ranks]
        try:
            self._wait(ranks, names)
        except (RuntimeError, TimeoutError) as error:
            missing = [rank for rank, name in zip(ranks, names, strict=True) if not self.has(name)]
            raise TimedOut("tacit.attach", missing, self.timeout_s) from error
        return [json.loads(self.store.get(name)) for name in names]

    def _wait(self, ranks: Sequence[int], names: list[str]) -> None:
        """Wait until ``names`` are in the store; unlike ``store.wait``, Python handles signals meanwhile.

        Raise if the run is asked to end, or if one of ``ranks`` has ended and will not be started again.
        """
        deadline_s, pause_s = time.monotonic() + self.timeout_s, _LOOK_AGAIN_S[0]
        while not self.store.check(names):
            if time.monotonic() > deadline_s:
                raise TimeoutError
            if self.is_asked_to_end():
                raise Interrupted("terminated (SIGTERM)")
            self._raise_if_gone(ranks, names)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_AGAIN_S[1])

    def _raise_if_gone(self, ranks: Sequence[int], names: list[str]) -> None:
        gone = [rank for rank in ranks if self._lives.is_gone(rank) or self.has_ended(rank)]
        absent = [rank for rank in gone if not self.store.check([names[ranks.index(rank)]])]
        if absent:
            way_out = "its own output says why. Every worker must call tacit.attach."
            raise PeerLost(absent[0], 0.0, "tacit.attach", way_out, ranks=absent)

    def published(self, key: str) -> list[Any]:
        """Return what ranks have published under ``key`` so far, in rank order; do not wait."""
        found = (self.find(f"{key}/{rank}") for rank in range(self.size))
        return [json.loads(text) for text in found if text is not None]

    # At the end of a run the store may be gone with its host. After the first failed call it is not called again:
    # each failure takes long.

    def has(self, name: str) -> bool:
        """Whether ``name`` is in the store; False if the store is gone."""
        return bool(self._ask(lambda: self.store.check([name])))

    def find(self, name: str) -> str | None:
        """Return the value of ``name``; None if it is not set, or the store is gone."""
        found = self._ask(lambda: self.store.get(name)) if self.has(name) else None
        return None if found is None else found.decode()

    def decide(self, name: str, value: str) -> str | None:
        """Set ``name`` to ``value`` unless it is set; return its value then, None if the store is gone."""
        decided = self._ask(lambda: self.store.compare_set(name, "", value))
        return None if decided is None else decided.decode()

    def mark(self, name: str) -> None:
        """Set the mark ``name`` of this rank, unless the store is gone."""
        self._ask(lambda: self.publish(name, True))

    def _ask(self, call: Callable[[], Any]) -> Any:
        if self.store_is_gone:
            return None
        try:
            return call()
        except RuntimeError:
            self.store_is_gone = True
            return None


def _find(timeout_s: float) -> tuple[int, int, Store]:
    """Return rank, size and store: of the user's process group, of the launcher, or of a single process."""
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        LaunchedLives(store).claim()
        return dist.get_rank(), dist.get_world_size(), store
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return 0, 1, HashStore()
    missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise TacitError(
            f"{' and '.join(missing)} missing in the environment although related variables are set; "
            f"start the script with torchrun, or unset all of them to run a single process."
        )
    if os.environ["WORLD_SIZE"] == "1":
        return 0, 1, HashStore()
    key, size = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    rank = size if SERVE in os.environ else int(os.environ["RANK"])  # a server process comes after all workers
    if not 0 <= rank < size + (SERVE in os.environ):
        raise TacitError(
            f"RANK={rank} must be from 0 to {size - 1}: there are WORLD_SIZE={size} workers; start them with tacit "
            f"launch or torchrun, which number them."
        )
    if key not in _stores:
        _stores[key] = store = _open_store(rank, size, timeout_s)
        if SERVE not in os.environ:
            LaunchedLives(store).claim()
    return rank, size, _stores[key]


def _open_store(rank: int, size: int, timeout_s: float) -> Store:
    """Host the store of the workers on rank 0, or connect to it; raise if that fails."""
    try:
        store: Store = next(rendezvous("env://", rank, size, timeout=timedelta(seconds=timeout_s)))[0]
    except dist.DistNetworkError as error:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        if "EADDRINUSE" in str(error):
            raise TacitError(
                f"MASTER_PORT={port} is in use on this machine, and rank 0 opens the workers' store there; choose "
                f"another port, and start one process with RANK=0."
            ) from error
        raise TacitError(
            f"the workers' store at MASTER_ADDR={address}, MASTER_PORT={port} cannot be reached; start rank 0 on that "
            f"machine, and give every worker its address and port."
        ) from error
    return store


def machine() -> str:
    """Return a name that two processes share if and only if they can reach each other over loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def own_address(interface: str | None) -> str | None:
    """Return the IP at which other machines reach this one: of ``interface`` if named, else towards the master.

    Return None if the master is reached through loopback, as on the master itself if /etc/hosts maps its name to
    127.0.1.1, the default of Debian and Ubuntu.
    """
    if interface is not None:
        return _address_of(interface)
    address = address_towards(os.environ.get("MASTER_ADDR", socket.gethostname()))
    return None if address.startswith("127.") else address


def address_towards(target: str) -> str:
    """Return the IP of the interface that routes to ``target``; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError as error:
            raise TacitError(
                f"no route to {target} ({error}); name the network interface: tacit.attach(…, interface=…)."
            ) from None


def _address_of(interface: str) -> str:
    import fcntl  # not available on every system

    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise TacitError(f"interface={interface!r} does not exist; known are {', '.join(names)}.")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, interface.encode()[:15].ljust(256, b"\0"))  # SIOCGIFADDR
        except OSError:
            raise TacitError(f"interface={interface!r} has no IPv4 address.") from None
    return socket.inet_ntoa(answer[20:24])


def gpu() -> str | None:
    """Return the UUID of the GPU that this process uses; None if it uses none."""
    return (
        str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else None
    )
