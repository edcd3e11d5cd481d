"""Address book: the addresses of endpoints, exchanged through the store.

A process that cannot reach the store can neither send nor receive.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from torch.distributed.distributed_c10d import Store

from tacit.errors import TimedOut
from tacit.runtime.messaging.security import Address, Credentials

_LOOK_AGAIN_S: Final = 0.005


class AddressBook:
    """The addresses of one run in ``store``, whose prefix is the run's own."""

    def __init__(self, store: Store, credentials: Credentials) -> None:
        self._store, self._credentials = store, credentials

    def publish(self, address: int, entry: Address) -> None:
        self._store.set(_key(address), self._credentials.seal(entry))

    def find(self, address: int) -> Address | None:
        """Return the entry of ``address``; None if it is not published yet, or is forged."""
        # Not store.get, which waits and blocks the store for other threads meanwhile.
        if not self._store.check([_key(address)]):
            return None
        return self._credentials.open(address, self._store.get(_key(address)).decode(errors="replace"))

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
