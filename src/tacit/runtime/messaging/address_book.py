"""Address book: addresses, public keys and the run's token, exchanged through the store.

A process that cannot reach the store can neither send nor receive.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from torch.distributed.distributed_c10d import Store

from tacit.errors import TimedOut

_TOKEN_BYTES: Final = 16
_LOOK_AGAIN_S: Final = 0.005


class Address(NamedTuple):
    """Address of one endpoint: the URL of its socket, its public key under CURVE, and the life of its seat."""

    url: str
    public_key: bytes
    life: int = 1


class AddressBook:
    """The addresses of one run in ``store``, whose prefix is the run's own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The first process to come sets the token; all others get that one.
        self.token = bytes.fromhex(store.compare_set("token", "", secrets.token_hex(_TOKEN_BYTES)).decode())

    def publish(self, address: int, entry: Address) -> None:
        self._store.set(_key(address), f"{entry.url} {entry.public_key.decode()} {entry.life}")

    def find(self, address: int) -> Address | None:
        """Return the entry of ``address``; None if it is not published yet."""
        # Not store.get, which waits and blocks the store for other threads meanwhile.
        if not self._store.check([_key(address)]):
            return None
        url, key, life = self._store.get(_key(address)).decode().split(" ")
        return Address(url, key.encode(), int(life))

    def wait_for(self, addresses: Iterable[int], timeout_s: float) -> dict[int, Address]:
        """Return the entries of ``addresses`` once all are published."""
        deadline_s, missing, found = time.monotonic() + timeout_s, list(addresses), dict[int, Address]()
        while True:
            found |= {address: entry for address in missing if (entry := self.find(address)) is not None}
            missing = [address for address in missing if address not in found]
            if not missing:
                return found
            if time.monotonic() > deadline_s:
                raise TimedOut("the exchange of addresses", missing, timeout_s)
            time.sleep(_LOOK_AGAIN_S)


def _key(address: int) -> str:
    return f"address/{address}"
