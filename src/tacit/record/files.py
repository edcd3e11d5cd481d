"""Write files atomically, so that a reader finds the old or the new content, never a part; and write tables as TOML."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import tomli_w

_TOML_STRING: Final = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to ``path`` on success and remove it on an error.

    sync: write the content to the disk before the rename, and the rename to the disk before returning.
    """
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        yield part
        if sync:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in ``folder`` to the disk. Without this a crash of the machine may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Write ``text`` to ``path`` atomically. sync: as in ``replacing``."""
    with replacing(path, sync=sync) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def replacing_folder(target: Path, *, last: str) -> Iterator[Path]:
    """Yield a temporary folder; on success move its files into ``target``, on an error remove it.

    Other files in ``target`` are kept. The file ``last`` is removed first and moved last: a folder that contains it is
    complete.
    """
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        if not target.exists():
            part.rename(target)
            return
        (target / last).unlink(missing_ok=True)
        for file in sorted(part.iterdir(), key=lambda file: file.name == last):
            file.replace(target / file.name)
        part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def toml_text(table: Mapping[str, object], *, comment: str = "") -> str:
    """Return ``table`` as TOML without entries that are None, under a comment.

    A string with double quotes is written in single quotes where TOML allows it, so that calls stay readable.
    """
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + _TOML_STRING.sub(_in_single_quotes, tomli_w.dumps(_without_none(table)))


def _without_none(table: Mapping[str, object]) -> dict[str, Any]:
    plain = {str(key): value for key, value in table.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, Mapping) else value for key, value in plain.items()}


def _in_single_quotes(found: re.Match[str]) -> str:
    """Return a quoted string as a literal one if it contains double quotes, no single quotes and no other escapes."""
    text = found[1].replace('\\"', '"')
    return f"'{text}'" if '"' in text and "'" not in text and "\\" not in text else found[0]
