"""Security of messages: the three modes, and the tokens and keys of endpoints.

    token   loopback: every message carries a token; nothing is encrypted, nothing leaves the machine
    curve   between hosts: CURVE encrypts and authenticates every byte, the token included; only a process that has the
            receiver's public key can connect
    plain   trusted links between hosts: as token; anyone who can read the link can read and forge messages

With the secret of the run (``tacit launch``, or TACIT_SECRET) tokens and keys are derived from it. Each holds for one
life of the sender and one of the receiver. The store holds sealed addresses only: who forges one is refused. Without
it, the token and the public keys are in the store, for everybody who reaches the store.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from hmac import compare_digest
from typing import Final, NamedTuple

import zmq
from torch.distributed.distributed_c10d import Store
from zmq.utils import z85

from tacit.errors import nearest, require
from tacit.runtime.messaging.secret import derive

SECURITIES: Final = ("token", "curve", "plain")
_TOKEN_BYTES: Final = 16
_SEAL_BYTES: Final = 16
_log: Final = logging.getLogger(__name__)


class Address(NamedTuple):
    """Address of one endpoint: the URL of its socket, its public key under CURVE, and the life of its process."""

    url: str
    public_key: bytes
    life: int = 1


class Keys(NamedTuple):
    """A CURVE key pair; both keys are empty without encryption."""

    public: bytes = b""
    secret: bytes = b""


def check_security(security: str, host: str) -> None:
    """Raise for an unknown mode, and for an unencrypted token outside loopback."""
    require(security in SECURITIES, f"security={security!r} is unknown{nearest(security, SECURITIES)}")
    require(
        security != "token" or ipaddress.ip_address(host).is_loopback,
        f"security='token' with host={host!r} would send token and tensors unencrypted over the network; "
        f"use 'curve' to encrypt, or 'plain' on a trusted link.",
    )


class Credentials:
    """By what an endpoint and its peers know each other.

    store: of the session, the same for all. secret: of the run, or None.
    """

    def __init__(self, address: int, life: int, security: str, store: Store, secret: bytes | None) -> None:
        self._address, self.life, self._is_curve, self._secret = address, life, security == "curve", secret
        # The first process to come sets it; all others get that one. With a secret it only tells sessions apart.
        self._common = store.compare_set("token", "", secrets.token_hex(_TOKEN_BYTES)).decode()
        self._tokens: dict[tuple[int, int], bytes] = {}  # of messages to this endpoint, by sender and its life
        self._refused: dict[int, str] = {}  # the last one of each peer
        self.refusals = 0  # addresses in the store that nobody with the secret has written
        self.keys = self._keys(address, life) if self._is_curve else Keys()

    def token_to(self, peer: int, life: int) -> bytes:
        """Return the token of messages to ``life`` of ``peer``."""
        return self._token(self._address, self.life, peer, life)

    def is_token_of(self, token: bytes, sender: int, life: int) -> bool:
        """Whether ``token`` is that of messages from ``life`` of ``sender`` to this endpoint."""
        known = self._tokens.get((sender, life))
        if known is not None:
            return compare_digest(token, known)
        right = self._token(sender, life, self._address, self.life)
        if not compare_digest(token, right):
            return False
        self._tokens[sender, life] = right
        return True

    def seal(self, entry: Address) -> str:
        """Return the text that publishes this endpoint's address."""
        key = entry.public_key.decode() if self._secret is None else ""
        return f"{entry.url} {key} {entry.life} {self._seal_of(self._address, entry.url, entry.life)}"

    def open(self, peer: int, text: str) -> Address | None:
        """Return the address that ``text`` publishes; None, and count it, if it is not the peer's own."""
        found = self._opened(peer, text)
        if found is None and self._refused.get(peer) != text:
            self._refused[peer] = text
            self.refusals += 1
            if self.refusals == 1:
                _log.warning("refused an address in the store that %d has not written; others are only counted.", peer)
        return found

    def _opened(self, peer: int, text: str) -> Address | None:
        try:
            url, key, number, seal = text.split(" ")
            life = int(number)
        except ValueError:
            return None
        if not compare_digest(seal.encode(), self._seal_of(peer, url, life).encode()):
            return None
        if self._secret is not None:
            return Address(url, self._keys(peer, life).public if self._is_curve else b"", life)
        return Address(url, key.encode(), life)

    def _token(self, sender: int, sender_life: int, receiver: int, life: int) -> bytes:
        if self._secret is None:
            return bytes.fromhex(self._common)
        purpose = ("token", self._common, sender, sender_life, receiver, life)
        return derive(self._secret, *purpose, size_bytes=_TOKEN_BYTES)

    def _seal_of(self, address: int, url: str, life: int) -> str:
        if self._secret is None:
            return "-"
        return derive(self._secret, "address", self._common, address, url, life, size_bytes=_SEAL_BYTES).hex()

    def _keys(self, address: int, life: int) -> Keys:
        if self._secret is None:
            return Keys(*zmq.curve_keypair())
        secret = z85.encode(derive(self._secret, "curve", self._common, address, life))
        return Keys(zmq.curve_public(secret), secret)


def guard_receiver(socket: zmq.Socket[bytes], mine: Keys) -> None:
    """Let ``socket`` accept only connections from processes that have its public key."""
    if mine.secret:
        socket.curve_server = True
        socket.curve_secretkey = mine.secret


def guard_sender(socket: zmq.Socket[bytes], mine: Keys, receiver: bytes) -> None:
    """Let ``socket`` connect only to the holder of the secret key of ``receiver``, a public key."""
    if mine.secret:
        socket.curve_serverkey = receiver
        socket.curve_publickey, socket.curve_secretkey = mine
