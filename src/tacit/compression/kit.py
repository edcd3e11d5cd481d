"""Deprecated: the checks of a compressor are in ``tacit.testing``."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from tacit.testing import compressors

    new = "check_compressor" if name == "check" else name
    found = getattr(compressors, new)
    text = f"tacit.compression.kit.{name} is deprecated; import {new} from tacit.testing.compressors."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return found
