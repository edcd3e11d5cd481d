"""The vectors of several ranks, as rows of a matrix, compressed in one call of their common compressor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tacit.compression.compressor import Compressed, Memory
from tacit.compression.feedback.codec import Codec, owned


def compress_rows(codecs: Sequence[Codec], rows: Tensor, memories: Sequence[Memory]) -> list[Compressed]:
    """Return C(row) for each row, as ``compress`` of its codec returns it; the compressor is the same."""
    first = codecs[0]
    randoms = [codec.random for codec in codecs]
    return [*map(owned, first.compressor.compress_rows(rows, randoms, memories, first.shapes))]


def compress_differences(
    codecs: Sequence[Codec], rows: Tensor, estimates: Tensor, memories: Sequence[Memory]
) -> list[Compressed]:
    """Return c = C(row − estimate) for each row, and change the estimates, as ``compress_difference`` does."""
    first = codecs[0]
    known = ([codec.random for codec in codecs], memories, first.shapes, first.dtype, first.scale)
    return [*map(owned, first.compressor.compress_changes(rows, estimates, *known))]
