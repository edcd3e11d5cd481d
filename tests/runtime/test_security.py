"""What somebody who reads and writes the store gets from it: with the run's secret, nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import zmq
from torch._C._distributed_c10d import HashStore

from tacit.core.messages import TensorMessage
from tacit.errors import TacitError, TimedOut
from tacit.runtime.messaging.address_book import AddressBook
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.receiver import stamp
from tacit.runtime.messaging.secret import derive, find_secret, fingerprint, new_secret
from tacit.runtime.messaging.security import Address, Credentials
from tacit.runtime.rendezvous import check_secrets

SECRET = b"sixteen bytes or more"
WORKERS = (0, 1)


def endpoint(
    address: int, store: HashStore, security: str, secret: bytes | None = SECRET, life: int = 1, timeout_s: float = 20.0
) -> MessageEndpoint:
    return MessageEndpoint(
        address,
        [rank for rank in WORKERS if rank != address],
        store,
        security=security,
        secret=secret,
        life=life,
        hook_lock=HookLock(),
        handler=lambda source, message: None,
        timeout_s=timeout_s,
        largest_bytes=2**20,
    )


@contextmanager
def closing(*endpoints: MessageEndpoint) -> Iterator[None]:
    try:
        yield
    finally:
        with ThreadPoolExecutor(len(endpoints)) as pool:
            list(pool.map(MessageEndpoint.close, endpoints))


def published(store: HashStore, rank: int) -> tuple[str, str]:
    """Return the URL and the rest of what the store holds of an endpoint."""
    url, _, rest = store.get(f"address/{rank}").decode().partition(" ")
    return url, rest


@pytest.mark.parametrize("security", ["token", "curve"])
def test_workers_with_the_secret_reach_each_other(security: str) -> None:
    store = HashStore()
    a, b = endpoint(0, store, security), endpoint(1, store, security, life=3)
    with closing(a, b):
        a.send(1, TensorMessage(torch.ones(3)))
        assert b.receive(TensorMessage)[1].tensor.tolist() == [1.0] * 3
        b.send(0, TensorMessage(torch.zeros(100_000)))
        assert a.receive(TensorMessage)[0] == 1
        assert (a.bad_messages, b.bad_messages) == (0, 0)


def test_the_store_holds_no_key_and_no_token() -> None:
    store = HashStore()
    a = endpoint(0, store, "curve")
    with closing(a):
        credentials = Credentials(1, 1, "curve", store, SECRET)
        own = Credentials(0, 1, "curve", store, SECRET)
        everything = b"".join(store.get(key) for key in ("token", "address/0")).decode()
    hidden = [SECRET.decode(), credentials.token_to(0, 1).hex(), own.keys.secret.decode(), own.keys.public.decode()]
    assert [text for text in hidden if text in everything] == []


@pytest.mark.parametrize("security", ["token", "curve"])
def test_nobody_gets_into_the_middle_by_writing_addresses(security: str, caplog: pytest.LogCaptureFixture) -> None:
    """The outsider replaces the address of worker 1 by its own before worker 0 connects."""
    store, context = HashStore(), zmq.Context()
    a, b = endpoint(0, store, security, timeout_s=0.5), endpoint(1, store, security)
    with closing(a, b), context.socket(zmq.PULL) as trap:
        url, rest = published(store, 1)
        trap.linger = 0
        mine = f"tcp://127.0.0.1:{trap.bind_to_random_port('tcp://127.0.0.1')}"
        for forged in (f"{mine} {rest}", mine, f"{mine} {zmq.curve_keypair()[0].decode()} 1 -", "\udcff"):
            store.set("address/1", forged.encode(errors="surrogateescape"))
            assert AddressBook(store, Credentials(0, 1, security, store, SECRET)).find(1) is None
        with pytest.raises(TimedOut, match="the exchange of addresses got no answer from worker 1"):
            a.send(1, TensorMessage(torch.zeros(3)))
        assert a.bad_messages == 1, "it has looked many times, and counts an address once"
        assert "refused an address in the store that 1 has not written" in caplog.text
        store.set("address/1", f"{url} {rest}")
        a.send(1, TensorMessage(torch.zeros(3)))
        assert b.receive(TensorMessage)[0] == 0
        assert not trap.poll(0)
    context.destroy(linger=0)


@pytest.mark.parametrize("security", ["token", "curve"])
def test_nobody_speaks_as_a_worker_by_reading_the_store(security: str) -> None:
    store, context = HashStore(), zmq.Context()
    a, b = endpoint(0, store, security), endpoint(1, store, security)
    with closing(a, b), context.socket(zmq.PUSH) as outsider:
        outsider.linger = 0
        if security == "curve":
            outsider.curve_publickey, outsider.curve_secretkey = zmq.curve_keypair()
            outsider.curve_serverkey = zmq.curve_keypair()[0]
        outsider.connect(published(store, 1)[0])
        poison = TensorMessage(torch.full((2,), 7.0)).frames()[0]
        outsider.send(stamp(bytes.fromhex(store.get("token").decode()), 0) + poison)
        for number in range(20):  # time enough for whatever else wants in
            a.send(1, TensorMessage(torch.full((2,), float(number))))
            assert b.receive(TensorMessage)[1].tensor[0] == number
        assert b.waiting == 0
        if security == "token":
            while not b.bad_messages:
                b.raise_if_failed()
        assert b.bad_messages == (security == "token")  # under CURVE nothing arrives
    context.destroy(linger=0)


def test_a_token_holds_for_one_sender_one_receiver_and_their_lives() -> None:
    store = HashStore()
    right = Credentials(0, 2, "token", store, SECRET).token_to(1, 3)
    assert len(right) == 16
    assert Credentials(1, 3, "token", store, SECRET).is_token_of(right, 0, 2)
    others = [
        Credentials(0, 1, "token", store, SECRET).token_to(1, 3),
        Credentials(0, 2, "token", store, SECRET).token_to(1, 2),
        Credentials(2, 2, "token", store, SECRET).token_to(1, 3),
        Credentials(0, 2, "token", HashStore(), SECRET).token_to(1, 3),
        Credentials(0, 2, "token", store, SECRET + b"!").token_to(1, 3),
        Credentials(0, 2, "token", store, None).token_to(1, 3),
    ]
    receiver = Credentials(1, 3, "token", store, SECRET)
    assert [receiver.is_token_of(token, 0, 2) for token in others] == [False] * 6
    assert [receiver.is_token_of(right, sender, life) for sender, life in ((0, 1), (2, 2))] == [False] * 2


def test_an_address_holds_for_one_endpoint_and_its_life() -> None:
    store = HashStore()
    entry = Address("tcp://127.0.0.1:4000", b"", 2)
    text = Credentials(1, 2, "token", store, SECRET).seal(entry)
    reader = Credentials(0, 1, "token", store, SECRET)
    assert reader.open(1, text) == entry and reader.refusals == 0
    assert reader.open(2, text) is None
    assert reader.open(1, text.replace("4000", "4001")) is None
    assert reader.open(1, text.replace(" 2 ", " 3 ")) is None
    assert reader.refusals == 3


def test_without_a_secret_the_store_holds_the_token() -> None:
    store = HashStore()
    a, b = Credentials(0, 1, "token", store, None), Credentials(1, 1, "token", store, None)
    assert a.token_to(1, 1) == bytes.fromhex(store.get("token").decode()) and b.is_token_of(a.token_to(1, 1), 0, 1)
    entry = Address("tcp://127.0.0.1:4000", Credentials(0, 1, "curve", store, None).keys.public)
    assert b.open(0, a.seal(entry)) == entry


# The secret itself.


def test_keys_for_different_purposes_have_nothing_in_common() -> None:
    purposes = [("a", "bc"), ("ab", "c"), ("abc",), ("a", 1), ("a", 11), (), ("a", 1, 1)]
    keys = [derive(SECRET, *purpose) for purpose in purposes]
    assert len({*keys, SECRET}) == len(purposes) + 1 and {len(key) for key in keys} == {32}
    assert derive(SECRET, "a") == derive(SECRET, "a") != derive(SECRET + b"a", "a")


def test_secrets_are_found_in_the_environment(tmp_path: Path) -> None:
    secret = new_secret()
    file = tmp_path / "secret"
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    assert find_secret({}) is None
    assert find_secret({"TACIT_SECRET": secret}) == find_secret({"TACIT_SECRET_FILE": str(file)}) == secret.encode()
    assert new_secret() != secret and len(secret) >= 32


@pytest.mark.parametrize(
    ("mode", "content", "message"),
    [
        (0o640, "0123456789abcdef", r"can be read or written by other users \(mode 0640\); make a new secret"),
        (0o602, "0123456789abcdef", r"mode 0602"),
        (0o600, "0123456789abcde\n", "holds 15 bytes, and a secret needs at least 16; make one:"),
        (0o600, "", "holds 0 bytes"),
        (None, "", r"cannot be read \(No such file or directory\); copy it from the machine that made it: scp"),
    ],
    ids=["group", "others", "short", "empty", "missing"],
)
def test_files_that_hold_no_good_secret(tmp_path: Path, mode: int | None, content: str, message: str) -> None:
    file = tmp_path / "secret"
    if mode is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(TacitError, match=message):
        find_secret({"TACIT_SECRET_FILE": str(file)})


def test_a_secret_that_is_too_short_or_given_twice() -> None:
    with pytest.raises(TacitError, match="TACIT_SECRET holds 5 bytes, and a secret needs at least 16"):
        find_secret({"TACIT_SECRET": "12345"})
    with pytest.raises(TacitError, match="TACIT_SECRET and TACIT_SECRET_FILE are both set; unset one of them"):
        find_secret({"TACIT_SECRET": new_secret(), "TACIT_SECRET_FILE": os.devnull})


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ([SECRET, SECRET, None], "process 2 has no secret, and others have one; set TACIT_SECRET_FILE on every"),
        ([None, SECRET], "process 0 has no secret, and others have one"),
        ([SECRET, SECRET, SECRET + b"!"], "process 2 has another secret than process 0"),
    ],
    ids=["one without", "first without", "another"],
)
def test_processes_with_different_secrets_are_named(secrets: list[bytes | None], message: str) -> None:
    check_secrets([{"secret": fingerprint(secrets[0])}] * 2)
    with pytest.raises(TacitError, match=message):
        check_secrets([{"secret": fingerprint(secret)} for secret in secrets])
