"""What the benchmark keeps in its folder: rows of JSON, one per measurement, that no later call makes again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Rows:
    """A file of JSON lines. A line that was cut off by the end of a process does not count."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows = list(_read(file))

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def find(self, **wanted: Any) -> Row | None:
        """Return the last row with these values."""
        return next((row for row in reversed(self._rows) if wanted.items() <= row.items()), None)

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(dict(row))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def _read(file: Path) -> Iterator[Row]:
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
