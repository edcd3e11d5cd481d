"""The first message of a method that estimates each rank's vector: compressed, as all others, or the vector itself."""

from __future__ import annotations

from typing import Literal

from tacit.errors import require

Init = Literal["compressed", "full"]


def check_init(init: str) -> None:
    """Raise ``ValueError`` unless ``init`` is known."""
    require(
        init in ("compressed", "full"),
        f'init={init!r} must be "compressed" (the first message is C(∇f)) or "full" (it is ∇f, counted).',
    )
