"""What strangers cannot do to an endpoint: fill its memory with large frames, or keep peers out with idle connections."""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, TCPStore

import tacit
from tacit.core.messages import TensorMessage
from tacit.runtime.launcher.store import hosted_store
from tacit.runtime.messaging.limits import LEAST_LIMIT_BYTES, allow_descriptors, frame_limit_bytes
from tests.runtime.processes import together
from tests.runtime.test_endpoint import End, Note, close, ends, url_of

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31)
READY = b"\x04\x27\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH\x08Identity\x00\x00\x00\x00"
CONNECTIONS = 3_000


def address_of(store: HashStore, address: int) -> tuple[str, int]:
    host, port = re.fullmatch(r"tcp://(.*):(\d+)", url_of(store, address)).groups()
    return host, int(port)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_limit_holds_the_largest_message_of_a_model():
    assert frame_limit_bytes(nn.Linear(2, 2)) == LEAST_LIMIT_BYTES
    large = nn.Linear(2000, 2000)
    largest = tacit.TopK(fraction=1.0).compress(torch.randn(4_002_000, dtype=torch.float64), None)
    assert max(map(len, largest.frames())) < frame_limit_bytes(large) < 100 * 2**20


def test_a_message_that_receivers_would_refuse_is_refused_where_it_is_sent():
    with (
        ends(0, 1, largest_bytes=2**20) as (a, b),
        pytest.raises(tacit.TacitError, match=r"a TensorMessage with a field of 1048580 bytes .* send it in parts"),
    ):
        a.endpoint.send(1, TensorMessage(torch.zeros(2**18)))
        b.endpoint.receive(TensorMessage)
        a.endpoint.send(1, TensorMessage(torch.zeros(2**18 + 1)))


def announce(largest_bytes: int, size_bytes: int) -> tuple[int, int]:
    """Announce a frame to an endpoint and send its content; return what it took, and by how much memory grew."""
    store = HashStore()
    a, b = (End(store, one, [1 - one], largest_bytes=largest_bytes) for one in (0, 1))
    a.endpoint.send(1, Note(1))
    assert b.endpoint.receive(Note) == (0, Note(1))
    before, sent, block = resident_bytes(), 0, bytes(2**20)
    with socket.create_connection(address_of(store, 1)) as stranger, suppress(ConnectionError):
        stranger.settimeout(5)
        stranger.sendall(GREETING + READY + b"\x02" + struct.pack(">Q", size_bytes))
        while sent < size_bytes:
            stranger.sendall(block)
            sent += len(block)
    grown = resident_bytes() - before
    a.endpoint.send(1, Note(2))
    assert b.endpoint.receive(Note) == (0, Note(2))
    close(a, b)
    return sent, grown


@pytest.mark.processes
def test_a_large_frame_is_refused_unread():
    [(sent, grown)] = together(1, announce, 2**24, 8 * 2**30)
    assert sent < 2**27 and grown < 64 * 2**20, (sent, grown)
    [(sent, grown)] = together(1, announce, 2**28, 100 * 2**20)  # one that may come is read: the test can fail
    assert sent == 100 * 2**20 and grown > 64 * 2**20, (sent, grown)


def join_beside_idle_connections() -> int:
    """Return how many connections were held when a peer came and was heard."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    store = HashStore()
    first = End(store, 0, [1])
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * CONNECTIONS  # of which this process has both ends
    with ExitStack() as held:
        for number in range(CONNECTIONS):
            stranger = held.enter_context(socket.create_connection(address_of(store, 0)))
            if number % 2:
                stranger.sendall(GREETING + READY)
        second = End(store, 1, [0])
        second.endpoint.send(0, Note(1))
        assert first.endpoint.receive(Note) == (1, Note(1))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda end: end.endpoint.close(), (first, second)))
    return CONNECTIONS


def reach_the_store_beside_idle_connections() -> bytes:
    """Return what a worker reads from the launcher's store while strangers hold connections to it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    store = hosted_store()
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", store.port)))
        worker = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
        store.set("key", "value")
        return bytes(worker.get("key"))


@pytest.mark.processes
def test_a_worker_reaches_the_store_while_strangers_hold_thousands_of_connections():
    allow_descriptors()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * CONNECTIONS:
        pytest.skip("this process may not open that many files")
    assert together(1, reach_the_store_beside_idle_connections) == [b"value"]


@pytest.mark.processes
def test_a_peer_gets_in_while_strangers_hold_thousands_of_connections():
    allow_descriptors()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * CONNECTIONS:
        pytest.skip("this process may not open that many files")
    assert together(1, join_beside_idle_connections) == [CONNECTIONS]
