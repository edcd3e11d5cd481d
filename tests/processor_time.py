"""Option ``--cpu-durations=N``: processor seconds by test and by file, with those of the processes that a test starts.

Wall-clock durations depend on what else the machine does; processor seconds hardly do. N = 0 shows all tests.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

NAME: Final = "processor_s"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessorTime:
    """Plugin that adds the processor seconds of each phase to its report, and prints their sums at the end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last_s = 0.0
        self.by_test: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.last_s = processor_time()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield
        now_s = processor_time()
        report.user_properties.append((NAME, now_s - self.last_s))
        self.last_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what the reports hold: in the controlling process, if several processes run the tests."""
        self.by_test[report.nodeid] += sum(seconds for name, seconds in report.user_properties if name == NAME)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_file: Counter[str] = Counter()
        for test, seconds in self.by_test.items():
            by_file[test.partition("::")[0]] += seconds
        total = sum(by_file.values())
        terminalreporter.section(f"processor time: {total:.1f} s in tests, without the start of pytest and its workers")
        for counts in (by_file, self.by_test):
            for name, seconds in counts.most_common(self.number or None):
                terminalreporter.write_line(f"{seconds:7.2f}s {name}")
            terminalreporter.write_line("")


def processor_time() -> float:
    """Return the processor seconds of this process and of all processes it started, ended or not."""
    ours = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(path.parent.name)
        times[process] = sum(map(int, fields[11:15])) / _TICKS_PER_S  # its own and those of its children that ended
        children.setdefault(int(fields[1]), []).append(process)
    pending = children.get(os.getpid(), [])
    for process in pending:  # grows while it is read: children of children
        pending.extend(children.get(process, []))
    return ours + sum(times[process] for process in pending)
