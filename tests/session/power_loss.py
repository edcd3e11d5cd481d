"""A loss of power, imitated: what a folder may hold afterwards if writes that were not synced are dropped.

While ``recorded`` is active, each call that changes the folder is followed by a look at it. A file's content is on the
disk as it was at the last fsync of the file, and a folder's names as they were at the last fsync of the folder. Disks
may write more than that, so each look gives several folders that a loss of power at this moment may leave:

    synced      only what was synced
    names       all names, but only synced contents: renames were written, contents were not
    removals    what was synced without the names that have been removed since
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Tree = dict[str, Any]
"""The content of a folder: bytes of a file, or a tree."""

CALLS = ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink")


class Disk:
    """What was synced of the folder ``root``, which exists with nothing in it."""

    def __init__(self, root: Path, *, drops: str = "") -> None:
        self.root, self.moments, self._drops = root, list[dict[str, Tree]](), drops
        self._contents, self._names = dict[int, bytes](), {root.stat().st_ino: dict[str, int]()}
        self._held: list[int] = []  # descriptors: a number of a removed file must not be used again
        self._folders = {root.stat().st_ino}

    def synced(self, descriptor: int) -> None:
        """Note that a file or a folder was synced, unless this kind is dropped: "files" or "folders"."""
        number, path = os.fstat(descriptor).st_ino, Path(f"/proc/self/fd/{descriptor}").readlink()
        kind = "folders" if path.is_dir() else "files"
        if kind == self._drops or not path.is_relative_to(self.root):
            return
        self._held.append(os.dup(descriptor))
        if kind == "files":
            self._contents[number] = path.read_bytes()
            return
        for entry in path.iterdir():
            self._held.append(os.open(entry, os.O_RDONLY))
            if entry.is_dir():
                self._folders.add(entry.stat().st_ino)
        self._names[number] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}

    def look(self) -> None:
        """Add the folders that a loss of power may leave now."""
        number = self.root.stat().st_ino
        self.moments.append(
            {
                "synced": self._synced_tree(number, None),
                "names": self._tree_of_names(self.root),
                "removals": self._synced_tree(number, self.root),
            }
        )

    def _synced_tree(self, number: int, without_removed: Path | None) -> Tree:
        tree: Tree = {}
        for name, entry in self._names.get(number, {}).items():
            path = None if without_removed is None else without_removed / name
            if path is not None and not path.exists():
                continue
            is_folder = entry in self._folders
            tree[name] = self._synced_tree(entry, path) if is_folder else self._contents.get(entry, b"")
        return tree

    def _tree_of_names(self, folder: Path) -> Tree:
        return {
            path.name: self._tree_of_names(path) if path.is_dir() else self._contents.get(path.stat().st_ino, b"")
            for path in folder.iterdir()
        }

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


@contextmanager
def recorded(root: Path, monkeypatch: pytest.MonkeyPatch, *, drops: str = "") -> Iterator[Disk]:
    """Record what happens in ``root``; drops: "files" or "folders", whose syncs have no effect."""
    disk = Disk(root, drops=drops)

    def following(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_look(*arguments: Any, **rest: Any) -> Any:
            result = call(*arguments, **rest)
            if name == "fsync":
                disk.synced(arguments[0])
            disk.look()
            return result

        return call_and_look

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, following(name, getattr(os, name)))
        yield disk
    disk.close()


def write_tree(tree: Tree, folder: Path) -> None:
    """Write ``tree`` into ``folder``, which must not exist."""
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            write_tree(content, folder / name)
