"""The secret of a run, which all of its processes share and nobody else knows, and keys that are derived from it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tacit.errors import TacitError

SECRET: Final = "TACIT_SECRET"
"""Environment variable: the secret itself. Only the user and root can read it in /proc."""
SECRET_FILE: Final = "TACIT_SECRET_FILE"
"""Environment variable: a file of mode 0600 that holds the secret."""
_FEWEST_BYTES: Final = 16
_NEW_BYTES: Final = 32
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def find_secret(variables: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the secret that the environment names; None if it names none."""
    if SECRET in variables and SECRET_FILE in variables:
        raise TacitError(f"{SECRET} and {SECRET_FILE} are both set; unset one of them.")
    if SECRET in variables:
        return _checked(variables[SECRET].strip().encode(), SECRET)
    if SECRET_FILE in variables:
        return _read(Path(variables[SECRET_FILE]))
    return None


def new_secret() -> str:
    """Return a secret of 32 random bytes, as text."""
    return secrets.token_urlsafe(_NEW_BYTES)


def derive(secret: bytes, *purpose: str | int, size_bytes: int = 32) -> bytes:
    """Return a key for ``purpose``. Who knows the key learns neither the secret nor the key for another purpose."""
    key = blake2b(secret, digest_size=32, person=b"tacit run secret").digest()
    text = "".join(f"{len(str(part).encode())}:{part}" for part in purpose)  # ("a", "bc") and ("ab", "c") must differ
    return blake2b(text.encode(), key=key, digest_size=size_bytes, person=b"tacit derivation").digest()


def fingerprint(secret: bytes | None) -> str | None:
    """Return a public text by which two processes see whether they have the same secret."""
    return None if secret is None else derive(secret, "fingerprint", size_bytes=8).hex()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read().strip()
    except OSError as error:
        raise TacitError(
            f"{SECRET_FILE}={path} cannot be read ({error.strerror}); copy it from the machine that made it: "
            f"scp -p HOST:FILE {path}"
        ) from None
    if mode & _OTHERS:
        raise TacitError(
            f"{SECRET_FILE}={path} can be read or written by other users (mode {stat.S_IMODE(mode):04o}); "
            f"make a new secret and keep it to yourself: (umask 077; openssl rand -hex 32 > {path})"
        )
    return _checked(content, f"{SECRET_FILE}={path}")


def _checked(secret: bytes, where: str) -> bytes:
    if len(secret) < _FEWEST_BYTES:
        raise TacitError(
            f"{where} holds {len(secret)} bytes, and a secret needs at least {_FEWEST_BYTES}; "
            f"make one: (umask 077; openssl rand -hex 32 > FILE), and set {SECRET_FILE}=FILE."
        )
    return secret
