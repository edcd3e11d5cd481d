"""The LIBSVM text format: one sample per line, ``label index:value index:value …``, indices from 1 and increasing."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tacit.errors import BadData
from tacit.workloads.data.files import numbered_lines

_DENSE_LIMIT_BYTES = 4 << 30


def read_libsvm(path: str | Path, dtype: DTypeLike = np.float64) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the dense matrix of features and the vector of labels in ``path`` (plain, .gz, .bz2 or .xz).

    Comments after ``#``, blank lines and ``qid`` pairs are passed over. Anything else that is not a sample raises
    ``BadData`` with its line.
    """
    path = Path(path)
    labels, counts, columns, values = array("d"), array("q"), array("q"), array("d")
    for number, line in numbered_lines(path):
        words = line.partition("#")[0].split()
        if not words:
            continue
        before = len(columns)
        try:
            _read_sample(words, labels, columns, values)
        except ValueError as error:
            raise BadData(f"{path}, line {number}: {error}") from None
        counts.append(len(columns) - before)
    if not labels:
        raise BadData(f"{path}: holds no samples.")
    dimension = max(columns, default=0)
    if not dimension:
        raise BadData(f"{path}: holds {len(labels)} labels but not one index:value pair.")
    return _dense(path, dimension, dtype, counts, columns, values), np.array(labels, dtype=dtype)


def _read_sample(words: list[str], labels: array[float], columns: array[int], values: array[float]) -> None:
    label = _number(words[0], "label")
    last = 0
    for word in words[1:]:
        index, colon, value = word.partition(":")
        if index == "qid":
            continue
        try:
            column, number = int(index), float(value)
        except ValueError:
            raise ValueError(_why_broken(index, colon, value, word)) from None
        if column <= last:
            raise ValueError(_why_out_of_order(column, last))
        if not math.isfinite(number):
            raise ValueError(f"value {value!r} of feature {column} is not finite.")
        columns.append(column)
        values.append(number)
        last = column
    labels.append(label)


def _number(word: str, what: str) -> float:
    try:
        number = float(word)
    except ValueError:
        raise ValueError(f"{what} {word!r} is not a number.") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} {word!r} is not finite.")
    return number


def _why_broken(index: str, colon: str, value: str, word: str) -> str:
    if not colon or not index or not value:
        return f"{word!r} is not an index:value pair."
    try:
        int(index)
    except ValueError:
        return f"index {index!r} in {word!r} is not a whole number."
    return f"value {value!r} in {word!r} is not a number."


def _why_out_of_order(column: int, last: int) -> str:
    if column < 1:
        return f"index {column} must be at least 1; LIBSVM counts features from 1."
    if column == last:
        return f"index {column} occurs twice."
    return f"index {column} follows index {last}; indices must increase along a line."


def _dense(
    path: Path, dimension: int, dtype: DTypeLike, counts: array[int], columns: array[int], values: array[float]
) -> NDArray[Any]:
    size_bytes = len(counts) * dimension * np.dtype(dtype).itemsize
    if size_bytes > _DENSE_LIMIT_BYTES:
        raise BadData(
            f"{path}: {len(counts)} samples of {dimension} features would fill {size_bytes / 2**30:.1f} GiB as a dense "
            f"matrix and the limit is {_DENSE_LIMIT_BYTES / 2**30:.0f} GiB; select features or samples and pass (X, y)."
        )
    matrix = np.zeros((len(counts), dimension), dtype=dtype)
    matrix[np.repeat(np.arange(len(counts)), np.array(counts)), np.array(columns) - 1] = np.array(values)
    return matrix
