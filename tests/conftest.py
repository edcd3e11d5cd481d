"""Settings shared by all tests, and the markers that ``make test-fast`` selects by.

A test gets the marker ``processes`` here if its code, a fixture it uses, or a function of the tests that one of these
names, names one of ``LAUNCHERS``. Any other test fails when it starts a process; it then needs
``@pytest.mark.processes``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.processor_time import ProcessorTime
from tests.runtime.forked_python import forked_python
from tests.runtime.processes import start_fork_server

LAUNCHERS = {"together", "outcomes", "Module", "subprocess"}
WAITING = ("runtime", "scripts", "cli", "test_examples.py", "test_documentation.py", "test_benchmarks.py")

torch.set_num_threads(1)  # the digest of a run is the same only for equal numbers of threads
# Examples follow from the test alone, so that only a change can make a test fail. New ones: --hypothesis-profile=explore
not_timed: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **not_timed, derandomize=False)
settings.register_profile("tacit", **not_timed, derandomize=True)
settings.load_profile("tacit")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``tests.processor_time``."""
    text = "show the N files and tests that take the most processor time (0: all), with the processes they start"
    parser.addoption("--cpu-durations", type=int, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Measure processor times if asked."""
    number = config.getoption("--cpu-durations")
    if number is not None:
        config.pluginmanager.register(ProcessorTime(number))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes, and put tests that mostly wait first: at the end they would leave a core idle."""
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = item._fixtureinfo.name2fixturedefs.values()
            used = [item.function, *(definitions[-1].func for definitions in fixtures)]
            if any(_names_a_launcher(inspect.unwrap(function)) for function in used):
                item.add_marker(pytest.mark.processes)
    items.sort(key=lambda item: not any(name in item.path.parts for name in WAITING))


def pytest_collection_finish() -> None:
    """Leave what exists before the first test, torch and thousands of tests, out of later garbage collections."""
    gc.freeze()


@functools.cache
def _names_a_launcher(function: Callable[..., Any]) -> bool:
    """Return whether ``function``, or a function of the tests that it names, names one of ``LAUNCHERS``."""
    pending: list[Any] = [function]
    seen: set[FunctionType] = set()
    while pending:
        one = pending.pop()
        if not isinstance(one, FunctionType) or one in seen:
            continue
        seen.add(one)
        if not one.__module__.startswith("tests.") or one.__module__ == __name__:
            continue
        names = set(_names(one.__code__))
        if names & LAUNCHERS:
            return True
        pending += [one.__globals__[name] for name in names if name in one.__globals__]
    return False


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in ``code`` and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@pytest.fixture(autouse=True)
def _no_process_without_the_marker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a test fail if it starts a process and is not marked with ``processes``."""
    if request.node.get_closest_marker("processes") is not None:
        return

    def refuse(*arguments: Any, **settings: Any) -> NoReturn:
        pytest.fail(f"{request.node.nodeid} starts a process; mark it with @pytest.mark.processes.")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(BaseProcess, "start", refuse)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Start the fork server of the tests before ``tacit.compare`` starts one that has not loaded pytest."""
    start_fork_server()


@pytest.fixture(scope="session")
def python(fork_server: None) -> Iterator[Path]:
    """Return an executable that stands for ``sys.executable`` and has torch loaded."""
    with tempfile.TemporaryDirectory() as folder, forked_python(Path(folder)) as executable:
        yield executable
