"""The examples of README.md and docs/ run in every world they are meant for.

    as they stand                         every block that simulates, attaches or defines a strategy
    tacit simulate, torchrun              those that attach, and those that define a strategy, which a small script attaches

One launch of two processes runs all of them, one after the other.
"""

from __future__ import annotations

import ast
import io
import os
import runpy
import traceback
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tacit
from tacit import Run, simulate
from tacit.cli import app
from tests.runtime.processes import together
from tools.check_readme import LINK, ROOT, Block, fenced_blocks

WORKERS = 2
TRAIN = """

def _train(strategy):
    torch.manual_seed(tacit.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, strategy, steps=9) as session:
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return session

for _strategy in [{strategies}]:
    session = _train(_strategy())
"""


def _calls(block: Block, name: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(ast.parse(block.body)))


def _strategies_of(block: Block) -> list[str]:
    """Return the names of the strategies that a block defines."""
    classes = [node for node in ast.parse(block.body).body if isinstance(node, ast.ClassDef)]
    return [one.name for one in classes if any("Strategy" in ast.unparse(base) for base in one.bases)]


def _script_of(block: Block) -> str:
    """Return the block as a script that attaches: as it stands, or its definitions and a loop that trains with its
    strategies.
    """
    if _calls(block, "attach"):
        return block.body
    tree = ast.parse(block.body)
    defining = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    definitions = ast.unparse(ast.Module([node for node in tree.body if isinstance(node, defining)], []))
    return definitions + TRAIN.format(strategies=", ".join(_strategies_of(block)))


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in fenced_blocks(page) if block.language == "python" and not block.exempt]
GUIDES = [page for folder in ("tutorial", "how-to") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
EXAMPLES = [block for block in BLOCKS if _calls(block, "simulate") or _calls(block, "attach") or _strategies_of(block)]
SCRIPTS = [block for block in EXAMPLES if _calls(block, "attach") or _strategies_of(block)]


def place(block: Block) -> str:
    return block.place


def test_the_pages_have_examples_of_each_sort() -> None:
    assert len(EXAMPLES) >= 14 and len(SCRIPTS) >= 5
    assert ["Neighbour"] in [_strategies_of(block) for block in SCRIPTS]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.stem)
def test_no_line_is_longer_than_120_characters(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [f"{page.name}:{number}" for number, line in enumerate(lines, 1) if len(line) > 120] == []


def test_links_lead_from_the_readme_to_every_guide() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        addresses = [match[1] or match[2] for match in LINK.finditer(page.read_text())]
        targets = {(page.parent / address.partition("#")[0]).resolve() for address in addresses}
        waiting += [target for target in targets - reached if target.suffix == ".md" and target.exists()]
        reached |= targets
    assert len(GUIDES) >= 14
    assert [page.name for page in GUIDES if page not in reached] == []


def _simulate_briefly(*arguments: Any, steps: int = 16, **settings: Any) -> Run:
    return simulate(*arguments, steps=min(steps, 16), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("block", EXAMPLES, ids=place)
def test_it_runs_as_it_stands(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations take at most 16 steps, unless the block asserts something; ``make check`` runs every block in full."""
    if not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(block.body))):
        monkeypatch.setattr(tacit, "simulate", _simulate_briefly)
    code = compile("\n" * (block.line - 1) + block.body, str(block.path), "exec", dont_inherit=True)
    with chdir(tmp_path), redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__"})


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS, ids=place)
def test_it_runs_on_simulated_workers(block: Block, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_script_of(block))
    with chdir(tmp_path):
        answer = CliRunner().invoke(app, ["simulate", "train.py", "--workers", str(WORKERS), "--out", "run", "--quiet"])
        assert answer.exit_code == 0, answer.output
        run = Run.load("run")
    assert (run.status, run.workers) == ("finished", WORKERS)


def run_all(paths: list[str]) -> dict[str, list[Any]]:
    """Run scripts one after the other in this process; return status, sum of parameters and step of each."""
    results: dict[str, list[Any]] = {}
    for path in paths:
        os.chdir(Path(path).parent)
        try:
            session = runpy.run_path(path, run_name="__main__")["session"]
            results[path] = [session.run.status, session.run.parameters.double().sum().item(), session.step]
        except BaseException:  # noqa: BLE001 - shown by the test
            results[path] = [traceback.format_exc()]
            break  # the ranks are no longer in step
    return results


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Any]]]:
    """Return what became of every script on each of two real processes."""
    folder = tmp_path_factory.mktemp("launched")
    paths = [folder / str(number) / "train.py" for number in range(len(SCRIPTS))]
    for path, block in zip(paths, SCRIPTS, strict=True):
        path.parent.mkdir()
        path.write_text(_script_of(block))
    results = together(WORKERS, run_all, [str(path) for path in paths], timeout_s=100)
    return [
        {block.place: one.get(str(path), ["not reached"]) for path, block in zip(paths, SCRIPTS, strict=True)}
        for one in results
    ]


@pytest.mark.parametrize("block", SCRIPTS, ids=place)
def test_it_runs_on_real_processes(block: Block, launched: list[dict[str, list[Any]]]) -> None:
    first, *others = [result[block.place] for result in launched]
    assert first[0] == "finished", first[0]
    for other in others:
        assert other == first, "the ranks must report the same model"
