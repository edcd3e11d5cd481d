"""Hooks of mkdocs: links that leave docs/ lead to copies of the files in the site.

Pages link to benchmarks/results, examples and other files by paths that work in the repository. The site holds only
docs/, so these hooks add every linked file under ``repository/`` and rewrite the links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"(?<!\\)(\[[^\]]*\]\(<?)([^)\s>#]+)((?:#[^)\s>]*)?>?[^)]*\))")
FENCE: Final = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
OUTSIDE: Final = "repository"


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ that pages link to, and the files that those link to."""
    from mkdocs.structure.files import File

    found: set[Path] = set()
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        for target in _linked(page):
            if target not in found and not target.is_relative_to(ROOT / "docs"):
                found.add(target)
                files.append(File.generated(config, _address(target), abs_src_path=str(target)))
                if target.suffix == ".md":
                    pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links that leave docs/, and those that lead from outside files back into it."""
    source = Path(page.file.abs_src_path)
    here = Path(_address(source)).parent

    def rewritten(match: re.Match[str]) -> str:
        target = _target(source, match[2])
        if target is None:
            return match[0]
        return match[1] + Path(os.path.relpath(_address(target), here)).as_posix() + match[3]

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[end:])])


def _linked(page: Path) -> list[Path]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = (_target(page, match[2]) for match in LINK.finditer(text))
    return [target for target in targets if target is not None]


def _target(page: Path, link: str) -> Path | None:
    """Return the file that a relative link leads to; None for other links."""
    if re.match(r"[a-z]+:|//", link):
        return None
    target = (page.parent / link).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def _address(path: Path) -> str:
    """Return where a file is in the site: pages as in docs/, other files under ``repository/``."""
    docs = ROOT / "docs"
    inside = path.is_relative_to(docs)
    return (path.relative_to(docs) if inside else OUTSIDE / path.relative_to(ROOT)).as_posix()
