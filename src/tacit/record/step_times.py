"""Long lists of step times in settings, kept in files of the run folder: ``Recorded(times_s="step-times-….txt")``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tacit.record.files import write_text

PATTERN: Final = "step-times-*.txt"
"""Names of the files; the rest of a name is a hash of its content."""
_MOST_SPELLED: Final = 32
"""Lists with more numbers are kept in files."""
_LIST: Final = re.compile(r"(?<=Recorded\(times_s=)[\[(]([^\[\]()]*)[\])](?=\))")
_NAME: Final = re.compile(r'(?<=Recorded\(times_s=)"(step-times-[0-9a-f]{12}\.txt)"(?=\))')


def moved_to_files(settings: Any, folder: Path) -> Any:
    """Return ``settings`` with each long list of step times replaced by the name of a file, which is written."""

    def moved(found: re.Match[str]) -> str:
        numbers = [number.strip() for number in found[1].split(",") if number.strip()]
        if len(numbers) <= _MOST_SPELLED:
            return found[0]
        content = "".join(f"{line}\n" for line in ("# seconds per step", *numbers))
        name = f"step-times-{hashlib.sha256(content.encode()).hexdigest()[:12]}.txt"
        write_text(folder / name, content)
        return f'"{name}"'

    return _mapped(settings, lambda text: _LIST.sub(moved, text))


def read_from_files(settings: Any, folder: Path) -> Any:
    """Return ``settings`` with the lists that ``moved_to_files`` replaced; a name without a file stays."""

    def read(found: re.Match[str]) -> str:
        with suppress(OSError):
            lines = (folder / found[1]).read_text(encoding="utf-8").splitlines()
            return f"[{', '.join(line for line in lines if line and not line.startswith('#'))}]"
        return found[0]

    return _mapped(settings, lambda text: _NAME.sub(read, text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return ``value`` with ``change`` of each text in it, also inside lists and dicts."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value
