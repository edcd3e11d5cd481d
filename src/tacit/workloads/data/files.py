"""Readers for data files, plain or compressed; every failure raises ``BadData`` with the name of the file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import IO, TypeVar, cast

from tacit.errors import BadData

Result = TypeVar("Result")
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)


def remembered(read: Callable[[str | Path], Result]) -> Callable[[str | Path], Result]:
    """Let ``read`` keep what it made of the last file or folder until that changes: a comparison opens its data for
    every run.
    """
    kept: dict[tuple[object, ...], Result] = {}

    @wraps(read)
    def read_once(path: str | Path) -> Result:
        key = _fingerprint(Path(path))
        if key not in kept:
            made = read(path)
            kept.clear()
            kept[key] = made
        return kept[key]

    return read_once


def _fingerprint(path: Path) -> tuple[object, ...]:
    files = sorted([*path.glob("*"), *path.glob("*/*")]) if path.is_dir() else [path] if path.exists() else []
    return (path.resolve(), *((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files))


def read_bytes(path: Path) -> bytes:
    """Return the content of ``path``, decompressed where its name ends in .gz, .bz2 or .xz."""
    with _translated(path), _open(path) as file:
        return file.read()


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, from 1."""
    number = 0
    with _translated(path), _open(path) as file:
        try:
            for line in file:
                number += 1
                yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadData(
                f"{path}, line {number}: byte 0x{error.object[error.start]:02x} is not text (UTF-8)."
            ) from None
        except _DAMAGE as error:
            raise _damaged(f"{path}, line {number + 1}", error) from error


def find_file(folders: list[Path], names: list[str]) -> Path:
    """Return the first of ``names`` that exists in one of ``folders``, or raise ``BadData``."""
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    where = " and ".join(str(folder) for folder in folders)
    missing = "" if folders[0].is_dir() else f" (the folder {folders[0]} does not exist)"
    raise BadData(
        f"none of {', '.join(names)} is in {where}{missing}; give the folder that holds the data set's files."
    )


def _open(path: Path) -> IO[bytes]:
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".bz2":
            return bz2.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
    return path.open("rb")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadData(
            f"{path}: there is no such file; give an existing path, which is relative to {Path.cwd()}."
        ) from None
    except IsADirectoryError:
        raise BadData(f"{path}: is a folder; name the file in it.") from None
    except _DAMAGE as error:
        raise _damaged(str(path), error) from error


def _damaged(place: str, error: BaseException) -> BadData:
    return BadData(f"{place}: cannot be read further ({error}); the file is truncated or damaged; download it again.")
