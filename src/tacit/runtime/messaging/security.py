"""Who may speak: the three securities, and the keys of CURVE.

    token   loopback: every message carries the run's random token; nothing is encrypted, nothing leaves the machine
    curve   between hosts: CURVE encrypts and checks every byte; only who has a receiver's public key can connect to it, and the token is inside
    plain   links that are trusted: as token, but between hosts, where whoever can listen on the wire can read and forge

Tokens and public keys travel through the store alone.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

import zmq

from tacit.errors import nearest, require

SECURITIES: Final = ("token", "curve", "plain")


class Keys(NamedTuple):
    """A CURVE key pair; both are empty where nothing is encrypted."""

    public: bytes = b""
    secret: bytes = b""


def check_security(security: str, host: str) -> None:
    """Refuse an unknown security, and a token in the clear where others could read it."""
    require(security in SECURITIES, f"security={security!r} is unknown{nearest(security, SECURITIES)}")
    require(
        security != "token" or ipaddress.ip_address(host).is_loopback,
        f"security='token' with host={host!r} would show token and tensors to the network; "
        f"'curve' encrypts, 'plain' trusts the link.",
    )


def make_keys(security: str) -> Keys:
    return Keys(*zmq.curve_keypair()) if security == "curve" else Keys()


def guard_receiver(socket: zmq.Socket[bytes], mine: Keys) -> None:
    """Let ``socket`` accept only those who know its public key."""
    if mine.secret:
        socket.curve_server = True
        socket.curve_secretkey = mine.secret


def guard_sender(socket: zmq.Socket[bytes], mine: Keys, receiver: bytes) -> None:
    """Let ``socket`` speak only to the holder of the secret key that belongs to ``receiver``."""
    if mine.secret:
        socket.curve_serverkey = receiver
        socket.curve_publickey, socket.curve_secretkey = mine
