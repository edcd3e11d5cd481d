"""``tacit launch``: processes that end in every way, on one machine and on several."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command_line import Command
from tests.runtime.processes import Module

LAUNCH = ("tacit", "launch")
LONGEST_S = 60

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch.distributed as dist
from tacit.runtime.launched import LaunchedLives

seat, what = int(os.environ["RANK"]), sys.argv[1]
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
lives = LaunchedLives(store)
if what == "nobody" or (what == "leave" and seat == 1):
    sys.exit(0)
lives.claim()  # as tacit.attach does

def wait_until(condition):
    while not condition():
        time.sleep(0.01)

def note(**more):
    names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TACIT_MIN_WORKERS", "TACIT_SECRET",
             "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS", "TACIT_SECRET_FILE")
    found = {name: os.environ.get(name) for name in names}
    Path(f"{seat}-{lives.life}.json").write_text(json.dumps({"pid": os.getpid(), **found, **more}))

if what == "restart":  # worker 1 is killed twice, worker 2 fails; the others wait for its third life and go on
    if seat == 1 and lives.life < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(lambda: lives.current_life(1) == 3)
    if seat == 2:
        sys.exit(3)
    wait_until(lambda: lives.is_gone(2) if seat == 0 else lives.dead(2, 1))
    ends = [lives.dead(1, life).exit_code for life in (1, 2)] + [lives.dead(2, 1).exit_code]
    note(ends=ends, arguments=sys.argv[1:])
elif what == "fail":
    if seat == 1:
        print("no such file", file=sys.stderr)
        sys.exit(5)
    signal.signal(signal.SIGTERM, lambda *_: (note(), sys.exit(1)))
    time.sleep(1000)
elif what == "leave":
    wait_until(lambda: lives.is_gone(1))
    sys.exit(1)
elif what == "again":
    print(f"life {lives.life}", flush=True)
    sys.exit(4)
elif what == "wait":
    signal.signal(signal.SIGTERM, lambda *_: (note(), sys.exit(0)))
    Path(f"ready-{seat}").touch()
    time.sleep(1000)
else:
    note()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def notes(folder: Path, *lives: str) -> list[dict[str, object]]:
    return [json.loads((folder / f"{life}.json").read_text()) for life in lives]


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
def test_workers_that_fail_are_started_again_while_the_others_go_on(tmp_path: Path, script: str, python: Path) -> None:
    options = ("--workers", "3", "--min-workers", "2", "--max-restarts", "2")
    with Module(*LAUNCH, *options, script, "restart", "--lr", "0.1", folder=tmp_path, python=python) as process:
        code, _, errors = process.end(LONGEST_S)
    assert code == 0, errors
    first, second = notes(tmp_path, "0-1", "1-3")
    for number, note in enumerate((first, second)):
        assert note["ends"] == [-9, -9, 3] and note["arguments"] == ["restart", "--lr", "0.1"]
        assert (note["WORLD_SIZE"], note["LOCAL_RANK"], note["LOCAL_WORLD_SIZE"]) == ("3", str(number), "3")
        assert (note["MASTER_ADDR"], note["TACIT_MIN_WORKERS"]) == ("127.0.0.1", "2")
        assert (note["TORCHELASTIC_USE_AGENT_STORE"], note["TORCHELASTIC_RESTART_COUNT"]) == ("True", "0")
        assert len(str(note["TACIT_SECRET"])) >= 32 and note["TACIT_SECRET_FILE"] is None
    assert first["TACIT_SECRET"] == second["TACIT_SECRET"]
    assert errors.count("worker 1 was killed by SIGKILL (the kernel sends it when memory runs out)") == 2
    assert "; restart 1 of 2 in 0.5 s\n" in errors and "; restart 2 of 2 in 1.0 s\n" in errors
    assert "worker 2 ended with exit code 3; it had run for" in errors
    assert "2 of 3 workers finished after" in errors and "Traceback" not in errors


@pytest.mark.processes
def test_a_failure_without_restarts_ends_the_run(tmp_path: Path, script: str, python: Path) -> None:
    logs = tmp_path / "logs"
    with Module(*LAUNCH, "--logs", str(logs), script, "fail", folder=tmp_path, python=python) as process:
        code, output, errors = process.end(LONGEST_S)
    assert (code, output) == (5, "")
    assert "error: 0 of 2 workers finished; worker 0 ended with exit code 1; worker 1 ended with exit code 5." in errors
    assert "fewer than 2 workers are left; the others end" in errors
    assert (logs / "worker-1.txt").read_text() == "no such file\n"
    assert notes(tmp_path, "0-1"), "it was asked to end"


@pytest.mark.processes
def test_a_restart_that_fails_each_time(tmp_path: Path, script: str, python: Path) -> None:
    options = ("--workers", "1", "--max-restarts", "2", "--prefix")
    with Module(*LAUNCH, *options, script, "again", folder=tmp_path, python=python) as process:
        code, output, errors = process.end(LONGEST_S)
    assert (code, output) == (4, "[0] life 1\n[0] life 2\n[0] life 3\n")
    assert "error: 0 of 1 workers finished after 2 restarts; worker 0 ended with exit code 4." in errors


@pytest.mark.processes
def test_workers_that_do_not_attach_are_named_and_do_not_count(tmp_path: Path, script: str, python: Path) -> None:
    with Module(*LAUNCH, "--max-restarts", "1", script, "leave", folder=tmp_path, python=python) as process:
        code, _, errors = process.end(LONGEST_S)
    assert code == 1, "worker 1 has finished, but has not taken part"
    assert "tacit launch: worker 1 ended without calling tacit.attach\n" in errors
    with Module(*LAUNCH, script, "nobody", folder=tmp_path, python=python) as process:
        code, _, errors = process.end(LONGEST_S)
    assert (code, errors) == (0, "tacit launch: no worker called tacit.attach, so each ran by itself\n")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_launcher(tmp_path: Path, script: str, python: Path, number: signal.Signals) -> None:
    with Module(*LAUNCH, script, "wait", folder=tmp_path, python=python) as process:
        wait_until(lambda: all((tmp_path / f"ready-{seat}").exists() for seat in range(2)))
        os.kill(process.pid, number)
        code, _, errors = process.end(LONGEST_S)
    assert code == (128 + signal.SIGTERM if number == signal.SIGTERM else -signal.SIGKILL)
    assert errors == ("error: interrupted.\n" if number == signal.SIGTERM else "")
    wait_until(lambda: all((tmp_path / f"{seat}-1.json").exists() for seat in range(2)))
    wait_until(lambda: not any(is_running(int(str(note["pid"]))) for note in notes(tmp_path, "0-1", "1-1")))


TRAINING = """
import os, time, torch, tacit
from pathlib import Path

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    with tacit.attach(model, optimizer, STRATEGY, rescue_folder="rescue") as session:
        Path(f"pid-{tacit.rank()}").write_text(str(os.getpid()))
        while True:
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if session.step == 40:
                Path(f"ready-{tacit.rank()}").touch()
            time.sleep(0.001)
except tacit.errors.Interrupted as error:
    Path(f"error-{tacit.rank()}.part").write_text(str(error))
    Path(f"error-{tacit.rank()}.part").rename(f"error-{tacit.rank()}")
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("tacit.LocalSGD(period=tacit.Every(4))", [0, 1]),
        ("tacit.SwarmSGD(local_steps=2)", [0, 1]),
        ("tacit.KAsync(k=1)", []),
    ],
)
def test_when_the_launcher_is_killed_workers_end_with_a_checkpoint_and_say_so(
    tmp_path: Path, python: Path, strategy: str, ranks: list[int]
) -> None:
    (tmp_path / "training.py").write_text(TRAINING.replace("STRATEGY", strategy))
    with Module(*LAUNCH, "training.py", folder=tmp_path, python=python) as process:
        wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(2)))
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: all((tmp_path / f"error-{rank}").exists() for rank in range(2)))
    for rank in range(2):
        error = (tmp_path / f"error-{rank}").read_text()
        assert error.startswith("terminated (SIGTERM); the store at 127.0.0.1:"), error
        assert error.endswith(" is gone, and the launcher with it")
    assert json.loads((tmp_path / "rescue" / "manifest.json").read_text())["ranks"] == ranks


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "ranks"), [("tacit.SwarmSGD(local_steps=2)", [0]), ("tacit.KAsync(k=1)", [])])
def test_a_run_with_messages_ends_with_a_checkpoint_when_too_few_workers_are_left(
    tmp_path: Path, python: Path, strategy: str, ranks: list[int]
) -> None:
    (tmp_path / "training.py").write_text(TRAINING.replace("STRATEGY", strategy))
    options = ("--workers", "3", "--min-workers", "2")
    with Module(*LAUNCH, *options, "training.py", folder=tmp_path, python=python) as process:
        wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(3)))
        for rank in (1, 2):
            os.kill(int((tmp_path / f"pid-{rank}").read_text()), signal.SIGKILL)
        code, _, errors = process.end(LONGEST_S)
    assert code == 1 and "fewer than 2 workers are left; the others end" in errors
    assert "PeerLost: workers 1 and 2 were lost" in errors
    assert json.loads((tmp_path / "rescue" / "manifest.json").read_text())["ranks"] == ranks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("absent.py",),
            "the script absent.py does not exist; give the path of a Python file, or -m and the name of a",
        ),
        (("--workers", "0", "train.py"), "--workers 0 must be at least 1."),
        (("--workers", "4", "--min-workers", "5", "train.py"), "--min-workers 5 must be from 1 to 4, the number of"),
        (("--workers", "4", "--min-workers", "0", "train.py"), "--min-workers 0 must be from 1 to 4, the number of"),
        (("--max-restarts", "-1", "train.py"), "--max-restarts -1 must be at least 0."),
        (("--workers", "4", "--total-workers", "3", "train.py"), "--total-workers 3 must be at least --workers 4"),
        (
            ("--total-workers", "4", "train.py"),
            "--total-workers 4 with --workers 2: the other machines need an address of this one; add --host ADDRESS,",
        ),
        (("--port", "70000", "train.py"), "--port 70000 must be from 1 to 65535."),
        (("--host", "0.0.0.0", "train.py"), "--host 0.0.0.0 would open the store on every interface; give the address"),
        (
            ("--host", "192.0.2.1", "train.py"),
            "--host 192.0.2.1 cannot be used (Cannot assign requested address); give",
        ),
        (("--server", "-m", "train"), "--server with --module: the server runs a script; give the path of its file."),
        (("--checkpoints", "kept", "train.py"), "--checkpoints are those of a server; add --server."),
        (("--server", "--checkpoints", "train.py", "train.py"), "--checkpoints train.py is a file; give the name of a"),
        (("--logs", "train.py", "train.py"), "--logs train.py is a file; give the name of a folder."),
        (("--join", "node0", "train.py"), "--join node0 must be HOST:PORT; use the address that the first one prints."),
        (("--join", "node0:1", "train.py"), "--join needs the secret of the run; copy the secret file of the first"),
        (
            ("--join", "node0:1", "--min-workers", "1", "--port", "2", "train.py"),
            "--min-workers, --port with --join: the first machine chooses; give it there.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_starts_nothing(tacit: Command, script: str, options: tuple[str, ...], message: str) -> None:
    answer = tacit("launch", *options)
    assert answer.exit_code == 2
    assert message in answer.errors and "Traceback" not in answer.errors


def test_a_secret_that_others_can_read_is_refused(
    tacit: Command, script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "secret").chmod(0o644)
    monkeypatch.setenv("TACIT_SECRET_FILE", "secret")
    answer = tacit("launch", "train.py")
    assert answer.exit_code == 2 and "TACIT_SECRET_FILE=secret can be read or written by other users" in answer.errors


def test_a_worker_cannot_launch(tacit: Command, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = tacit("launch", "train.py")
    assert answer.exit_code == 2
    assert "tacit launch cannot run inside a worker (RANK is set); unset RANK and WORLD_SIZE." in answer.errors
