"""The launcher with processes that start at once: interpreters without modules."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
from torch._C._distributed_c10d import TCPStore

from tacit.errors import TacitError
from tacit.runtime.launched import LaunchedLives, publish_end, publish_gone
from tacit.runtime.launcher import guardian
from tacit.runtime.launcher.launcher import Job, Launcher, Outcome
from tacit.runtime.launcher.machines import Machine, RunSettings
from tacit.runtime.launcher.processes import Output
from tacit.runtime.launcher.seats import State
from tacit.runtime.launcher.store import hosted_store

SECRET = "a secret of the tests"
LONGEST_S = 60


def run(
    program: str, workers: int, settings: RunSettings, output: Output | None = None
) -> tuple[Outcome, Machine, list[str]]:
    """Run a program in ``workers`` interpreters; return how it ended, and what the launcher said."""
    machine = Machine.first(workers, settings, SECRET.encode())
    said: list[str] = []
    job = Job(words=["-I", "-S", "-c", program], output=output or Output())
    return Launcher(job, machine, SECRET, said.append).run(), machine, said


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.processes
def test_the_end_of_every_life_is_in_the_store() -> None:
    program = "import os, sys; sys.exit(0 if os.environ['RANK'] != '1' else int(os.environ['TACIT_LIFE']) + 6)"
    outcome, machine, said = run(program, 2, RunSettings.new(2, 2, 1))
    assert not outcome.has_succeeded and [one.rank for one in outcome.failed] == [1] and outcome.restarts <= 1
    lives = LaunchedLives(machine.store, {"WORLD_SIZE": "2", "TACIT_LIFE": "1"})
    ended = lives.dead(0, 1), lives.dead(1, 1)
    assert [one.exit_code for one in ended if one is not None] == [0, 7]
    assert lives.is_gone(0) and lives.is_gone(1)
    assert said[0].startswith("worker 1 ended with exit code 7; it had run for")


@pytest.mark.processes
def test_what_a_failed_worker_has_started_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = (
        "import os, subprocess, sys, pathlib; child = subprocess.Popen(['sleep', '1000'], stderr=subprocess.DEVNULL);"
        f"pathlib.Path({str(child)!r}).write_text(str(child.pid)); sys.exit(1)"
    )
    outcome, _, _ = run(program, 1, RunSettings.new(1))
    assert [one.exit_code for one in outcome.failed] == [1]
    wait_until(lambda: not is_running(int(child.read_text())))


@pytest.mark.processes
def test_the_first_failure_and_its_last_output_are_reported(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; rank = os.environ['RANK'];"
        "print('shown', flush=True); print('\\x1b[31mworker', rank, file=sys.stderr, flush=True);"
        "time.sleep(1000) if rank == '0' else sys.exit(3)"
    )
    outcome, _, said = run(program, 2, RunSettings.new(2), Output(logs=tmp_path))
    assert [(one.rank, one.exit_code) for one in outcome.failed] == [(1, 3), (0, -signal.SIGTERM)]
    assert outcome.failed[0].output == "shown\nworker 1"
    assert "fewer than 2 workers are left; the others end" in said
    assert outcome.signal is None and outcome.restarts == 0


@pytest.mark.processes
def test_a_worker_that_does_not_end_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    """What the guardian does once its launcher is gone."""
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"child = subprocess.Popen(['sleep', '1000']); pathlib.Path({str(ready)!r}).write_text(str(child.pid));"
        "time.sleep(1000)"
    )
    stubborn = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], start_new_session=True)
    wait_until(lambda: ready.exists() and ready.read_text())
    begun_s = time.monotonic()
    guardian.end_all([stubborn.pid, 2**22 + 1], grace_s=0.2)
    assert time.monotonic() - begun_s >= 0.2
    assert stubborn.wait() == -signal.SIGKILL
    wait_until(lambda: not is_running(int(ready.read_text())))


@pytest.mark.processes
def test_the_store_is_reached_from_this_machine_only() -> None:
    store = hosted_store()
    assert TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False).check(["absent"]) is False
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    listening6 = [
        line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    port = f":{store.port:04X}"
    assert [address for address in listening + listening6 if address.endswith(port)] == [f"0100007F{port}"]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TacitError, match=f"--host 127.0.0.1, port {port}, cannot be used .Address already in use"):
            hosted_store("127.0.0.1", port)


# Several machines, here with one store on loopback.


def test_each_machine_takes_the_next_seats() -> None:
    settings = RunSettings.new(5, 3, 2)
    first = Machine.first(2, settings, SECRET.encode())
    second = Machine.joining(first.host, first.port, 1, SECRET.encode())
    third = Machine.joining(first.host, first.port, 2, SECRET.encode())
    machines = (first, second, third)
    assert [list(machine.seats) for machine in machines] == [[0, 1], [2], [3, 4]]
    assert [machine.number for machine in machines] == [0, 1, 2]
    assert third.settings == settings and first.missing() == 0 and not third.is_alone
    with pytest.raises(TacitError, match=r"--workers 2 would take seats 5 to 6, and the run has 5 in all \(0 to 4\)"):
        Machine.joining(first.host, first.port, 2, SECRET.encode())
    assert first.missing() == 0


def test_machines_hear_of_each_other_and_of_being_cut_off() -> None:
    first = Machine.first(1, RunSettings.new(2, 1), SECRET.encode())
    second = Machine.joining(first.host, first.port, 1, SECRET.encode())
    events: SimpleQueue[object] = SimpleQueue()
    first.watch(lambda seat, state: events.put((seat, state)), events.put)
    publish_end(second.store, 1, 1, -9)
    assert events.get(timeout=LONGEST_S) == (1, State.WAITING)
    publish_gone(second.store, 1)  # by another machine: the second one has not said so
    assert events.get(timeout=LONGEST_S) == (1, State.LOST)
    second.watch(lambda seat, state: None, events.put)
    assert (
        events.get(timeout=LONGEST_S) == "the other machines could not reach this one for a while, and go on without it"
    )
    assert second.is_cut_off
    first.close()
    second.close()


def test_a_machine_whose_store_is_gone_says_so() -> None:
    first = Machine.first(1, RunSettings.new(2), SECRET.encode())
    second, texts = Machine.joining(first.host, first.port, 1, SECRET.encode()), SimpleQueue[str]()
    second.watch(lambda seat, state: None, texts.put)
    where = f"{first.host}:{first.port}"
    del first
    gc.collect()
    text = texts.get(timeout=LONGEST_S)
    assert text.startswith(f"the store at {where} cannot be reached any more: the launcher of the first machine has")
    assert second.is_cut_off
    second.say_ended(1, 1, 0)  # which raises nothing


def test_a_machine_with_another_secret_or_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Machine.first(1, RunSettings.new(2), SECRET.encode())
    with pytest.raises(TacitError, match=f"the run at 127.0.0.1:{first.port} has another secret; copy the secret file"):
        Machine.joining("127.0.0.1", first.port, 1, b"another secret of the tests")
    monkeypatch.setattr("tacit.runtime.launcher.machines.tacit_version", lambda: "9.9")
    with pytest.raises(TacitError, match="has tacit .*, and this machine 9.9; install the same version"):
        Machine.joining("127.0.0.1", first.port, 1, SECRET.encode())
    other = hosted_store()
    with pytest.raises(TacitError, match=f"--join 127.0.0.1:{other.port} is no store of tacit launch; use the address"):
        Machine.joining("127.0.0.1", other.port, 1, SECRET.encode())
    assert os.environ.get("TACIT_SECRET") is None
