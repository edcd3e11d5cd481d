"""Another user of the machine against a run of ``tacit launch``: reads all of the store, writes all of it, and speaks."""

from __future__ import annotations

import base64
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from tacit.core.messages import TensorMessage
from tacit.errors import TimedOut
from tacit.runtime.launched import LaunchedLives, publish_end, publish_life
from tacit.runtime.launcher.machines import Machine, RunSettings
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.receiver import stamp
from tacit.runtime.messaging.security import Credentials
from tests.runtime.processes import context, start_fork_server

NOBODY = 65534
SECRET = b"a secret of the tests"
SESSION = "tacit/0/0"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Pickled:
    """What unpickling it leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def outsider(port: int, pid: int, marker: Path, tensor: bytes, answer: Connection) -> None:
    """As another user: return all of the store, and what else was found; then write and send whatever may help."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
    entries = {key: store.get(key) for key in store.list_keys()}
    found = [key for key in entries if key.startswith("torch.rendezvous")]
    for path in (f"/proc/{pid}/environ", f"/proc/{pid}/mem"):
        try:
            found.append(Path(path).read_bytes()[:10].hex())
        except OSError:
            continue
    context = zmq.Context()
    trap = context.socket(zmq.PULL)
    mine = f"tcp://127.0.0.1:{trap.bind_to_random_port('tcp://127.0.0.1')}"
    for key, value in entries.items():
        store.set(key, base64.b64encode(pickle.dumps(Pickled(marker))))
        if "/address/" in key:  # in the middle
            url, _, rest = value.decode().partition(" ")
            store.set(key, f"{mine} {rest}")
            push = context.socket(zmq.PUSH)
            push.connect(url)
            for token in [value for key, value in entries.items() if key.endswith("/token")]:
                for life in range(3):
                    push.send(stamp(bytes.fromhex(token.decode()), 0, life=life) + tensor)
    answer.send((entries, found))
    answer.recv()  # the others have tried to reach each other
    caught = [trap.recv() for _ in range(100) if trap.poll(0)]
    answer.send(len(caught))
    context.destroy(linger=0)


def endpoint(rank: int, port: int) -> MessageEndpoint:
    store: Store = PrefixStore(SESSION, TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    return MessageEndpoint(
        rank,
        [1 - rank],
        store,
        secret=SECRET,
        hook_lock=HookLock(),
        handler=lambda source, message: None,
        timeout_s=1.0,
        largest_bytes=2**20,
    )


@as_root
@pytest.mark.processes
def test_another_user_gets_no_token_no_code_and_no_place_in_the_middle(tmp_path: Path) -> None:
    machine, marker = Machine.first(2, RunSettings.new(2), SECRET), tmp_path / "pwned"
    tmp_path.chmod(0o777)
    publish_life(machine.store, 1, 2)
    publish_end(machine.store, 1, 1, -9)
    a, b = (endpoint(rank, machine.port) for rank in range(2))
    mine, its = context.Pipe()
    start_fork_server()
    poison = TensorMessage(torch.full((2,), 7.0)).frames()[0]
    other = context.Process(target=outsider, args=(machine.port, os.getpid(), marker, bytes(poison), its), daemon=True)
    other.start()
    assert mine.poll(60)
    entries, found = mine.recv()

    names = [key.removeprefix(f"{SESSION}/") for key in entries]
    assert {"address/0", "address/1", "token"} <= set(names) and found == []
    everything = b"".join(entries.values())
    store = PrefixStore(SESSION, machine.store)
    store.set("token", entries[f"{SESSION}/token"])  # as it was
    tokens = [Credentials(0, 1, "token", store, SECRET).token_to(1, 1), SECRET, machine.settings.name.encode() * 2]
    assert [token for token in tokens if token in everything or token.hex().encode() in everything] == []

    with pytest.raises(TimedOut, match="the exchange of addresses got no answer from worker 1"):
        a.send(1, TensorMessage(torch.zeros(2)))
    while b.bad_messages < 3:
        b.raise_if_failed()
    assert b.waiting == 0 and a.bad_messages >= 1
    lives = LaunchedLives(machine.store, {"TACIT_LIFE": "1", "RANK": "0", "WORLD_SIZE": "2"})
    assert (lives.current_life(1), lives.dead(1, 1), lives.is_gone(1)) == (1, None, False)
    mine.send("looked")
    assert mine.poll(60)
    assert mine.recv() == 0, "nobody connected to the outsider"
    other.join(60)
    assert other.exitcode == 0 and not marker.exists()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(MessageEndpoint.close, (a, b)))
