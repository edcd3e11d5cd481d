"""Message endpoints on real sockets: order, windows, handlers, foreign processes, and lost peers."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed import HashStore, TCPStore

from tacit.core.host_memory import keep_memory
from tacit.core.message_reading import unpack_frames
from tacit.core.messages import Message, TensorMessage
from tacit.core.network import SERVER
from tacit.errors import BadMessage, MisplacedCall, PeerLost, TimedOut
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.receiver import Purpose, Stamps, stamp
from tacit.runtime.messaging.security import Address, Keys
from tacit.runtime.messaging.senders import Sender, Window
from tests.runtime.processes import start_fork_server

pytestmark = pytest.mark.timeout(100)
TIMEOUT_S = 30.0


# A kind is known by its name alone: these must not be names of other tests' messages.
@dataclass(frozen=True)
class Note(Message):
    number: int


@dataclass(frozen=True)
class Enquiry(Message):
    number: int


@dataclass(frozen=True)
class Parcel(Message):
    first: Tensor
    name: str
    second: Tensor
    raw: bytes
    is_last: bool


class End:
    """One endpoint with its hook lock; its handler answers an enquiry with a note of the same number."""

    def __init__(self, store, address: int, peers: list[int], handler=None, **rest) -> None:
        self.hook_lock, self.received = HookLock(), []
        rest = {"host": "127.0.0.1", "security": "token", "timeout_s": TIMEOUT_S, "largest_bytes": 2**28} | rest
        self.endpoint = MessageEndpoint(
            address,
            peers,
            store,
            hook_lock=self.hook_lock,
            handles=(Enquiry,),
            handler=(lambda source, message: handler(self, source, message)) if handler else self.answer,
            sent=None,
            received=lambda source, message: self.received.append((source, message)),
            **rest,
        )

    def answer(self, source: int, message: Message) -> None:
        self.endpoint.send(source, Note(message.number))


@contextmanager
def ends(*addresses: int, **rest) -> Iterator[list[End]]:
    """Open endpoints that know one another, and close them together."""
    store = HashStore()
    made = [End(store, address, [a for a in addresses if a != address], **rest) for address in addresses]
    try:
        yield made
    finally:
        close(*made)


def close(*made: End) -> None:
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(lambda end: end.endpoint.close(), made))


def together(*tasks: Callable[[], None]) -> None:
    """Run ``tasks`` in threads of their own; raise what the first to fail raises."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        for done in as_completed([pool.submit(task) for task in tasks]):
            done.result()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        time.sleep(0.001)


@pytest.mark.parametrize("security", ["token", "curve", "plain"])
def test_ping_pong(security: str):
    with ends(0, SERVER, security=security) as (worker, server):

        def write() -> None:
            for number in range(20):
                worker.endpoint.send(SERVER, Note(number))
                assert worker.endpoint.receive(Note, source=SERVER) == (SERVER, Note(number + 1))

        def write_back() -> None:
            for _ in range(20):
                source, note = server.endpoint.receive(Note)
                server.endpoint.send(source, Note(note.number + 1))

        together(write, write_back)


def test_tensors_arrive_whole_and_may_be_written_to():
    with ends(0, 1) as (a, b):
        big = torch.randn(300_000, dtype=torch.float64)
        a.endpoint.send(1, Parcel(big, "x", torch.arange(6).reshape(2, 3), b"raw", True))
        _, came = b.endpoint.receive(Parcel)
        assert torch.equal(came.first, big) and torch.equal(came.second, torch.arange(6).reshape(2, 3))
        assert (came.name, came.raw, came.is_last) == ("x", b"raw", True)
        came.first.zero_()
        assert big.abs().sum() > 0


def test_small_tensors_that_are_large_together_arrive():
    with ends(0, 1) as (a, b):
        a.endpoint.send(1, Parcel(torch.ones(15_000), "x", torch.ones(15_000), b"raw", True))
        assert b.endpoint.receive(Parcel)[1].second.sum() == 15_000


def test_a_send_is_a_snapshot_unless_the_message_owns_its_tensors():
    for tensor in (
        torch.zeros(100_000),
        torch.zeros(100_000, dtype=torch.bfloat16),
        nn.Parameter(torch.zeros(100_000)),
    ):
        assert len(TensorMessage(tensor).frames()) == 2
        for message, shares in ((TensorMessage(tensor), False), (TensorMessage(tensor).owned(), True)):
            assert message.is_owned is shares
            sent = torch.frombuffer(message.frames()[1], dtype=tensor.dtype)
            assert (sent.data_ptr() == tensor.data_ptr()) is shares
    assert TensorMessage(tensor).snapshot().is_owned and TensorMessage(tensor).snapshot().tensor is not tensor


def unpacked(frames: Sequence[bytes | bytearray | memoryview]) -> Message:
    head, *rest = frames
    return unpack_frames(bytes(head), rest=map(memoryview, rest))


@pytest.mark.parametrize(
    "message",
    [
        Note(3),
        TensorMessage(torch.zeros(5)),
        TensorMessage(torch.zeros(40_000).reshape(200, 200)),
        TensorMessage(torch.zeros(300, 300).t()),
        TensorMessage(torch.tensor(1.0, dtype=torch.bfloat16)),
        TensorMessage(torch.empty(0, 3)),
        Parcel(torch.zeros(20_000), "nämlich", torch.ones(30_000, dtype=torch.bfloat16), b"", False),
        Parcel(torch.zeros(20_000), "", torch.ones(40_000, dtype=torch.bfloat16), b"", True),  # two large ones in a row
        TensorMessage(nn.Parameter(torch.zeros(20_000))),
        TensorMessage(nn.Parameter(torch.zeros(300, 300, dtype=torch.bfloat16).t())),
        TensorMessage(torch.zeros((), dtype=torch.bool)),
    ],
    ids=str,
)
def test_frames_are_as_long_as_the_message_says(message: Message):
    frames = message.frames()
    assert sum(map(len, frames)) == message.size_bytes == len(message.pack())
    assert b"".join(frames)[17:] == message.pack()[17:]  # but for the header's checksum
    assert unpacked(frames).pack() == message.pack()


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_frames_that_were_tampered_with_are_refused_or_make_a_message(data: st.DataObject):
    message = Parcel(torch.zeros(20_000), "name", torch.ones(3), b"raw", True)
    frames = [bytearray(frame) for frame in message.frames()]
    assert len(frames) == 3
    match data.draw(st.sampled_from(["flip", "cut", "drop", "split", "junk"])):
        case "flip":
            frame = data.draw(st.sampled_from([f for f in frames if len(f) < 1000]))
            frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del frames[-1][data.draw(st.integers(0, len(frames[-1]) - 1)) :]
        case "drop":
            del frames[data.draw(st.integers(0, len(frames) - 1))]
        case "split":
            place = data.draw(st.integers(1, len(frames[1]) - 1))
            frames[1:2] = [frames[1][:place], frames[1][place:]]
        case "junk":
            frames = [bytearray(f) for f in data.draw(st.lists(st.binary(max_size=60), min_size=1, max_size=4))]
    with suppress(BadMessage):
        assert isinstance(unpacked(frames), Message)


def test_messages_of_a_source_keep_their_order_and_are_matched_by_kind_and_source():
    with ends(0, 1, 2) as (a, b, c):
        for number in range(50):
            a.endpoint.send(2, Note(number))
            b.endpoint.send(2, Note(100 + number))
        b.endpoint.send(2, TensorMessage(torch.ones(1)))
        assert c.endpoint.receive(TensorMessage)[0] == 1
        assert [c.endpoint.receive(Note, source=1)[1].number for _ in range(50)] == list(range(100, 150))
        assert [c.endpoint.receive(Note) for _ in range(50)] == [(0, Note(number)) for number in range(50)]


def test_a_handler_answers_while_its_worker_computes_but_never_while_a_hook_runs():
    inside: list[str] = []

    def answer(end: End, source: int, message: Message) -> None:
        assert not torch.is_grad_enabled() and end.hook_lock.is_handling
        inside.append("handler")
        end.answer(source, message)

    with ends(0, 1, handler=answer) as (asker, owner):
        owner.endpoint.start_handling()
        asker.endpoint.send(1, Enquiry(1))  # the owner's thread computes: it asks for nothing here
        assert asker.endpoint.receive(Note) == (1, Note(1))
        with owner.hook_lock:
            asker.endpoint.send(1, Enquiry(2))
            wait_until(lambda: owner.endpoint.waiting == 1)
            assert inside == ["handler"]
            with owner.hook_lock.released():
                assert asker.endpoint.receive(Note) == (1, Note(2))
        assert not owner.hook_lock.is_handling


def test_a_handler_answers_while_its_worker_receives():
    with ends(0, 1) as (asker, owner), ThreadPoolExecutor() as pool:
        owner.endpoint.start_handling()

        def hook():
            with owner.hook_lock:
                return owner.endpoint.receive(TensorMessage)[0]

        waiting = pool.submit(hook)
        for number in range(5):
            asker.endpoint.send(1, Enquiry(number))
            assert asker.endpoint.receive(Note) == (1, Note(number))
        asker.endpoint.send(1, TensorMessage(torch.ones(1)))
        assert waiting.result(TIMEOUT_S) == 0


def test_messages_that_arrived_before_handling_started_are_delivered_first():
    received = []
    with ends(0, 1, handler=lambda _, source, message: received.append(message.number)) as (a, b):
        for number in range(3):
            a.endpoint.send(1, Enquiry(number))
        wait_until(lambda: b.endpoint.waiting == 3)
        assert received == []
        b.endpoint.start_handling()
        a.endpoint.send(1, Enquiry(3))
        wait_until(lambda: received == [0, 1, 2, 3])


def test_a_message_that_is_received_takes_effect_after_those_that_arrived_before_it():
    """A server's restart cancels a step; the model that answers the push of that step must not overtake it."""
    handled: list[int] = []
    with ends(0, 1, handler=lambda _, source, message: handled.append(message.number)) as (a, b):
        b.endpoint.start_handling()
        with b.hook_lock:
            for message in (Enquiry(1), Enquiry(2), Note(3)):
                a.endpoint.send(1, message)
            wait_until(lambda: b.endpoint.waiting == 3)
            assert handled == []
            assert b.endpoint.receive(Note) == (0, Note(3))
            assert handled == [1, 2]


def test_a_full_window_blocks_a_hook_until_the_peer_reads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tacit.runtime.messaging.senders._WINDOW_BYTES", 2**20)
    monkeypatch.setattr("tacit.runtime.messaging.reader._INBOX_MESSAGES", 4)
    message = TensorMessage(torch.zeros(2**20)).owned()
    with ends(0, 1) as (a, b), ThreadPoolExecutor() as pool:

        def fill():
            with a.hook_lock:
                for _ in range(40):
                    a.endpoint.send(1, message)

        filling = pool.submit(fill)
        wait_until(lambda: b.endpoint.waiting == 4)
        with pytest.raises(TimeoutError):
            filling.result(0.3)
        with a.hook_lock:  # it waits with the hook lock released
            pass
        for _ in range(40):
            b.endpoint.receive(TensorMessage)
        filling.result(TIMEOUT_S)


def test_a_window_that_stays_full_times_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tacit.runtime.messaging.reader._INBOX_MESSAGES", 1)
    with ends(0, 1, timeout_s=0.5) as (a, _), pytest.raises(TimedOut, match="send to 1, whose window is full"):
        for _ in range(1000):
            a.endpoint.send(1, TensorMessage(torch.zeros(2**20)).owned())


def test_a_handler_may_neither_reply_twice_nor_block():
    def greedy(end: End, source: int, message: Message) -> None:
        if message.number:
            end.endpoint.receive(Note)
        end.answer(source, message)
        end.answer(source, message)

    for number, text in ((0, "at most one reply per message received"), (1, "a handler may not block")):
        with ends(0, 1, handler=greedy) as (asker, owner):
            owner.endpoint.start_handling()
            asker.endpoint.send(1, Enquiry(number))
            with pytest.raises(MisplacedCall, match=text):
                owner.endpoint.receive(Note)


def test_what_a_handler_raises_reaches_its_worker():
    def broken(*_) -> None:
        raise ZeroDivisionError("in the handler")

    with ends(0, 1, handler=broken) as (asker, owner):
        owner.endpoint.start_handling()
        asker.endpoint.send(1, Enquiry(1))
        with pytest.raises(ZeroDivisionError, match="in the handler"):
            owner.endpoint.receive(Note)
        with pytest.raises(ZeroDivisionError):
            owner.endpoint.raise_if_failed()


def test_replies_of_handlers_are_queued_while_the_peer_does_not_read(monkeypatch: pytest.MonkeyPatch):
    """Small replies fill zmq's queue, not the window of bytes; no handler blocks, and all arrive in order."""
    monkeypatch.setattr("tacit.runtime.messaging.reader._INBOX_MESSAGES", 250)
    count = 500  # of 60 KB: more than the kernel and zmq hold between two sockets

    def answer(end: End, source: int, message: Message) -> None:
        end.endpoint.send(source, TensorMessage(torch.full((15_000,), float(message.number))))

    with ends(0, 1, handler=answer) as (asker, owner):
        owner.endpoint.start_handling()
        for number in range(count):
            asker.endpoint.send(1, Enquiry(number))
        assert [asker.endpoint.receive(TensorMessage)[1].tensor[0] for _ in range(count)] == list(range(count))


@contextmanager
def stranger(url: str, **options) -> Iterator[zmq.Socket]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        for name, value in {"linger": 0, "sndtimeo": 20_000, **options}.items():
            setattr(socket, name, value)
        socket.connect(url)
        yield socket


def url_of(store: HashStore, address: int) -> str:
    return store.get(f"address/{address}").decode().split()[0]


def test_an_outsider_is_counted_receives_nothing_and_does_no_harm(caplog: pytest.LogCaptureFixture):
    store = HashStore()
    a, b = End(store, 0, [1]), End(store, 1, [0])
    url = url_of(store, 1)
    assert url.startswith("tcp://127.0.0.1:")
    bodies = [b"", b"hello", os.urandom(25) + b"".join(Note(1).frames()), bytes(16) + b"\0" * 9]
    with stranger(url) as socket:
        for body in bodies:
            socket.send(body)
        socket.send_multipart([b"x"] * 5)
        wait_until(lambda: b.endpoint.bad_messages == len(bodies) + 1)
    with zmq.Context() as context, context.socket(zmq.PULL) as listener:
        listener.linger = 0
        listener.connect(url)
        a.endpoint.send(1, Note(7))
        assert b.endpoint.receive(Note) == (0, Note(7))
        assert not listener.poll(100)
    assert b.received == [(0, Note(7))] and b.endpoint.waiting == 0
    close(a, b)
    assert caplog.text.count("dropped bytes received at tcp://127.0.0.1:") == 1


def test_an_outsider_with_the_token_but_not_the_keys_cannot_enter_under_curve():
    store = HashStore()
    a, b = End(store, 0, [1], security="curve"), End(store, 1, [0], security="curve")
    public, secret = zmq.curve_keypair()
    keys = {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": zmq.curve_keypair()[0]}
    forged = bytes.fromhex(store.get("token").decode()) + bytes(5) + bytes([1, 0, 0, 0]) + b"".join(Note(1).frames())
    with stranger(url_of(store, 1)) as plain, stranger(url_of(store, 1), **keys) as wrong_key:
        plain.send(forged)
        wrong_key.send(forged)
        a.endpoint.send(1, Note(7))
        assert b.endpoint.receive(Note) == (0, Note(7))
        for number in range(100):  # time enough for whatever else wants in
            a.endpoint.send(1, Enquiry(number))
        for number in range(100):
            assert b.endpoint.receive(Enquiry) == (0, Enquiry(number))
    assert (b.endpoint.waiting, b.endpoint.bad_messages) == (0, 0)
    close(a, b)


@given(st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=4), min_size=1, max_size=50))
@settings(deadline=None, max_examples=8)
def test_garbage_behind_the_token_is_counted_and_dropped(garbage: list[list[bytes]]):
    store = HashStore()
    a, b = End(store, 0, [1]), End(store, 1, [0])
    stamp = bytes.fromhex(store.get("token").decode()) + bytes(5) + bytes([1, 0, 0, 0])
    with stranger(url_of(store, 1)) as socket:
        for first, *rest in garbage:
            socket.send_multipart([stamp + first, *rest])
        wait_until(lambda: b.endpoint.bad_messages == len(garbage))
    a.endpoint.send(1, Note(7))
    assert b.endpoint.receive(Note) == (0, Note(7))
    close(a, b)


def test_a_large_message_whose_tensor_is_missing_takes_nothing_of_the_next():
    store = HashStore()
    a, b = End(store, 0, [1]), End(store, 1, [0])
    token = bytes.fromhex(store.get("token").decode())
    head, _ = TensorMessage(torch.zeros(100_000)).frames(b"", stamp(token, 0, Purpose.LARGE_MESSAGE))
    with stranger(url_of(store, 1)) as socket:
        socket.send(head)
        socket.send(stamp(token, 0) + Note(7).frames()[0])
        assert b.endpoint.receive(Note) == (0, Note(7))
    assert b.endpoint.bad_messages == 1
    close(a, b)


def test_encrypting_keeps_memory_unless_the_user_says_what_the_allocator_does(monkeypatch: pytest.MonkeyPatch):
    if platform.libc_ver()[0] == "glibc":
        assert keep_memory()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    assert not keep_memory()


def test_an_unencrypted_token_is_refused_outside_loopback():
    with pytest.raises(ValueError, match="security='token' with host='10.0.0.1' would send token and tensors"):
        End(HashStore(), 0, [1], host="10.0.0.1")
    with pytest.raises(ValueError, match="security='curves' is unknown; did you mean 'curve'"):
        End(HashStore(), 0, [1], security="curves")


def test_a_missing_peer_is_named():
    lonely = End(HashStore(), 0, [1, SERVER], timeout_s=0.1)
    with pytest.raises(TimedOut, match="the exchange of addresses got no answer from worker 1, the server within"):
        lonely.endpoint.send(1, Note(1))
    close(lonely)


def test_receive_times_out_and_says_who_is_missing():
    with ends(0, 1, timeout_s=0.2) as (a, _), pytest.raises(TimedOut, match=r"source=1\) got no answer from worker 1"):
        a.endpoint.receive(Note, source=1)


def test_what_was_sent_before_goodbye_arrives_and_then_the_peer_is_gone():
    with ends(0, 1) as (a, b):
        for number in range(10):
            a.endpoint.send(1, Note(number))
        a.endpoint.send(1, TensorMessage(torch.ones(10**6)))
        a.endpoint.close()
        assert [b.endpoint.receive(Note)[1].number for _ in range(10)] == list(range(10))
        assert b.endpoint.receive(TensorMessage)[1].tensor.sum() == 10**6
        with pytest.raises(
            PeerLost, match=r"receive\(Note\) needs a message and no peer is left; it had closed its session"
        ):
            b.endpoint.receive(Note)
        b.endpoint.send(0, Note(1))  # dropped


def test_a_server_is_notified_once_of_each_lost_peer_and_receives_what_it_sent_before():
    with ends(0, 1, 2, SERVER) as (*workers, server):
        for worker in workers:
            worker.endpoint.send(SERVER, Note(worker.endpoint.address))
        workers[1].endpoint.close()
        workers[0].endpoint.close()
        received, lost = [], []
        while len(lost) < 2:
            try:
                received.append(server.endpoint.receive(Note)[1].number)
            except PeerLost as error:
                lost.append(error.rank)
        assert sorted(received) == [0, 1, 2] and sorted(lost) == sorted(server.endpoint.lost) == [0, 1]
        workers[2].endpoint.send(SERVER, Note(5))
        assert server.endpoint.receive(Note) == (2, Note(5))  # the loss of the others is not reported again


def test_nothing_is_left_after_close_and_closing_twice_is_fine():
    before = set(threading.enumerate())
    with ends(0, 1, SERVER) as made:
        made[0].endpoint.send(1, TensorMessage(torch.zeros(10**6)))
        made[1].endpoint.receive(TensorMessage)
        assert set(threading.enumerate()) > before
        close(*made)
        assert set(threading.enumerate()) == before


def _doomed(port: int) -> None:
    end = End(TCPStore("127.0.0.1", port, is_master=False), 1, [0])
    end.endpoint.send(0, Note(1))
    end.endpoint.receive(TensorMessage)


@pytest.mark.processes
def test_a_killed_peer_is_noticed_by_receive_and_does_not_hold_up_close():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start_fork_server()
    victim = multiprocessing.get_context("forkserver").Process(target=_doomed, args=(store.port,))
    victim.start()
    end = End(store, 0, [1], timeout_s=60.0)
    assert end.endpoint.receive(Note) == (1, Note(1))
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    begun_s = time.monotonic()
    why = r"worker 1 was lost at .* receive\(Note, source=1\) needs a message from it; its own output says why"
    with pytest.raises(PeerLost, match=why) as lost:
        end.endpoint.receive(Note, source=1)
    assert lost.value.rank == 1
    end.endpoint.send(1, TensorMessage(torch.zeros(10**7)))  # dropped, without waiting
    end.endpoint.close()
    assert time.monotonic() - begun_s < 30.0  # it takes 0.02 s where the machine is idle


def test_a_message_that_is_sent_alone_waits_for_the_one_before():
    """The peer never reads, so the first message stays in zmq; other messages still have room."""
    context = zmq.Context()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(f"tcp://127.0.0.1:{silent.getsockname()[1]}", b"")
        sender = Sender(context, address, Keys(), Window(), Stamps(*[b""] * len(Purpose)))
        large = lambda: (b"stamp", memoryview(bytearray(2**20)))  # noqa: E731
        assert sender.offer(large(), may_queue=False, alone=True)
        assert not sender.offer(large(), may_queue=False, alone=True)
        assert sender.offer(large(), may_queue=False)
        context.destroy(linger=0)


def test_content_that_does_not_fit_its_handler_is_dropped_and_counted():
    """The receiver continues: the next enquiry is answered."""

    def handler(end: End, source: int, message: Message) -> None:
        if message.number < 0:
            raise BadMessage(f"number={message.number} must not be negative.")
        end.answer(source, message)

    with ends(0, 1, handler=handler) as (a, b):
        b.endpoint.start_handling()
        a.endpoint.send(1, Enquiry(-1))
        a.endpoint.send(1, Enquiry(7))
        assert a.endpoint.receive(Note) == (1, Note(7))
        assert b.endpoint.bad_messages == 1
