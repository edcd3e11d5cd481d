"""What the pages name exists: modules by path, pages of the site, and the verdicts that the papers' pages count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "results" / "README.md"]
SOURCE = re.compile(r"\bsrc/tacit/[\w/]*(?:\.py)?")
TEST = re.compile(r"\btests/[\w/]+\.py")
SHORT = ("concepts", "papers", "reference", "decisions")
RESULTS = {
    "lupa-sgd.md": "local_sgd.md",
    "adpsgd.md": "adpsgd.md",
    "ef21.md": "ef21.md",
    "adasync.md": "servers.md",
    "swarm-sgd.md": "swarm.md",
}


def _place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_place)
def test_named_modules_exist(page: Path) -> None:
    text = page.read_text()
    named = {*SOURCE.findall(text), *TEST.findall(text)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", [page for folder in SHORT for page in sorted((ROOT / "docs" / folder).glob("*.md"))], ids=_place
)
def test_no_line_is_longer_than_120_characters(page: Path) -> None:
    assert [number for number, line in enumerate(page.read_text().splitlines(), 1) if len(line) > 120] == []


def test_pages_name_modules() -> None:
    """The pattern finds paths: the pages of the papers name the files that implement them."""
    for paper in RESULTS:
        assert len(SOURCE.findall((ROOT / "docs" / "papers" / paper).read_text())) >= 4


@pytest.mark.parametrize("paper", RESULTS)
def test_named_classes_are_in_the_named_files(paper: str) -> None:
    """In the tables of classes and files, one of the row's files defines each class of the row."""
    wrong = []
    for row in (ROOT / "docs" / "papers" / paper).read_text().splitlines():
        files = [ROOT / path for path in SOURCE.findall(row) if row.startswith("|")]
        sources = "".join(file.read_text() for file in files if file.is_file())
        classes = re.findall(r"`([A-Z]\w*)`", row) if files else []
        wrong += [name for name in classes if not re.search(rf"^class {name}\b", sources, re.M)]
    assert wrong == []


def test_pages_of_the_site_exist() -> None:
    named = re.findall(r"^ +- (?:.*: )?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    folders = {path: ROOT if path.startswith("repository/") else ROOT / "docs" for path in named}
    missing = [path for path, folder in folders.items() if not (folder / path.removeprefix("repository/")).is_file()]
    assert len(named) >= 35 and missing == []


LARGER = {"lupa-sgd.md": "lupa_scale.md", "ef21.md": "ef21_least_squares.md", "adasync.md": "servers_mnist.md"}
"""The results on larger data, by page."""


def _counts(results: str) -> tuple[int, int]:
    """Return how many targets hold and do not hold."""
    table = (ROOT / "benchmarks" / "results" / results).read_text()
    holds, fails = (len(re.findall(rf"\| {verdict} \|$", table, re.M)) for verdict in ("holds", "DOES NOT HOLD"))
    return holds, fails


@pytest.mark.parametrize("paper", LARGER)
def test_papers_count_their_targets_on_larger_data(paper: str) -> None:
    holds, fails = _counts(LARGER[paper])
    page = (ROOT / "docs" / "papers" / paper).read_text()
    assert f"results/{LARGER[paper]}): {holds} targets hold, {fails} do not." in " ".join(page.split())
    index = (ROOT / "docs" / "papers" / "index.md").read_text()
    assert re.search(rf"\({paper}#[\w-]+\) {holds} of {holds + fails}[,.]", index)


@pytest.mark.parametrize("paper", RESULTS)
def test_papers_count_their_targets(paper: str) -> None:
    holds, fails = _counts(RESULTS[paper])
    verb = "does" if fails == 1 else "do"
    assert f"{holds} targets hold, {fails} {verb} not." in (ROOT / "docs" / "papers" / paper).read_text()
    row = next(
        line for line in (ROOT / "docs" / "papers" / "index.md").read_text().splitlines() if f"({paper})" in line
    )
    assert row.endswith(f"| {holds} of {holds + fails} |")
