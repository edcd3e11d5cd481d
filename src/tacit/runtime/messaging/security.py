"""Security of messages: the three modes, and the keys of CURVE.

    token   loopback: every message carries the run's random token; nothing is encrypted, nothing leaves the machine
    curve   between hosts: CURVE encrypts and authenticates every byte, the token included; only a process that has the
            receiver's public key can connect
    plain   trusted links between hosts: as token; anyone who can read the link can read and forge messages

Tokens and public keys are exchanged through the store only.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

import zmq

from tacit.errors import nearest, require

SECURITIES: Final = ("token", "curve", "plain")


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


def make_keys(security: str) -> Keys:
    return Keys(*zmq.curve_keypair()) if security == "curve" else Keys()


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
