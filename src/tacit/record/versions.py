"""Versions of the software that makes a run."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

import torch


@functools.cache
def tacit_version() -> str:
    """Return the version of the installed package tacit; reading it takes as long as a small simulation."""
    try:
        return version("tacit")
    except PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Return the versions of tacit, torch and Python, as a run records them."""
    return {"tacit": tacit_version(), "torch": torch.__version__, "python": platform.python_version()}
