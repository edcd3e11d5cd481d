"""Check what README.md and docs/ promise: links resolve, Python examples run, `tacit …` lines are commands that exist.

    python -m tools.check_readme

Python blocks are executed in order, each in a fresh namespace, in a temporary folder. A block that cannot
run here is preceded by a comment with the reason: ``<!-- not executed: needs two machines -->``.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
import typer.main

from tacit.cli import app
from tacit.cli.option_tables import settings_from

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"(?<!\\)\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)|(?:src|href)=\"([^\"]+)\"")
FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\w*).*?\n(?P<body>.*?)^(?P=indent)```", re.M | re.S)
EXEMPT: Final = re.compile(r"<!--\s*not executed:\s*(\S.*?)\s*-->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block, and where its first line stands."""

    path: Path
    line: int
    language: str
    body: str
    exempt: str | None

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def main() -> int:
    """Print every broken promise with its place; return how the process should end."""
    pages = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]
    broken = [problem for page in pages for problem in broken_links(page)]
    blocks = [block for page in pages for block in fenced_blocks(page)]
    broken += [problem for block in blocks if block.exempt is None for problem in broken_commands(block)]
    examples = [b for b in blocks if b.language == "python" and b.exempt is None]
    broken += [problem for block in examples for problem in failed_example(block)]
    print("\n".join(broken) if broken else f"{len(pages)} pages and {len(examples)} examples are as they say.")
    return 1 if broken else 0


def broken_links(page: Path) -> Iterator[str]:
    """Yield relative links of ``page`` that lead nowhere, headings included."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    for match in LINK.finditer(text):
        address = match[1] or match[2]
        if re.match(r"[a-z]+:|//", address):
            continue
        path, _, heading = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        if not target.exists():
            yield f"{place}: the link {address} leads nowhere"
        elif heading and target.suffix == ".md" and heading not in headings(target):
            yield f"{place}: {target.name} has no heading #{heading}"


def headings(page: Path) -> set[str]:
    """Return the anchors of ``page``'s headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def fenced_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of ``page``."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        exempt = EXEMPT.search(text[: match.start()].rstrip())
        line = text.count("\n", 0, match.start()) + 2
        indent = len(match["indent"])
        body = "\n".join(row[indent:] for row in match["body"].splitlines())
        yield Block(page, line, match["language"], body, exempt[1] if exempt else None)


def broken_commands(block: Block) -> Iterator[str]:
    """Yield `tacit …` lines of a shell block whose command or options do not exist."""
    if block.language not in ("console", "bash", "sh", "shell"):
        return
    for number, line in enumerate(block.body.replace("\\\n", " ").splitlines()):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["tacit"] and (problem := command_problem(words[1:])):
            yield f"{block.place} (command {number + 1} of the block): {problem}"


def command_problem(arguments: list[str]) -> str | None:
    """Return what the command line would refuse in ``arguments``, or None. Nothing is run."""
    if not arguments or arguments[0].startswith("-"):
        return None
    group = typer.main.get_group(app)
    context = group.make_context("tacit", [], resilient_parsing=True)
    command = group.get_command(context, arguments[0])
    if command is None:
        return f"there is no command {arguments[0]!r}"
    try:
        with redirect_stdout(io.StringIO()):
            given = command.make_context(arguments[0], list(arguments[1:]), parent=context).params
        if arguments[0] in ("compare", "simulate", "train") and given["config"] is None and not given.get("script"):
            settings_from(given, single=arguments[0] != "compare")
    except typer.Exit:  # --help
        return None
    except Exception as error:  # noqa: BLE001 - whatever is refused is the finding
        said = error.format_message() if hasattr(error, "format_message") else error
        return f"tacit {shlex.join(arguments)}: {said}"
    return None


def failed_example(block: Block) -> Iterator[str]:
    """Execute a Python block in an empty folder and yield how it failed."""
    source = "\n" * (block.line - 1) + block.body
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        try:
            exec(compile(source, str(block.path), "exec", dont_inherit=True), {"__name__": "__readme__"})
        except Exception as error:  # noqa: BLE001 - a failing example is the finding
            yield f"{block.place}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
