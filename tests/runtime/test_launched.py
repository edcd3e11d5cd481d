"""What the launcher says about the lives of seats, read from a store."""

from __future__ import annotations

import os
import socket

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from tacit.errors import Interrupted, PeerLost, TacitError
from tacit.runtime.environment import Environment
from tacit.runtime.launched import Ended, LaunchedLives, publish_end, publish_gone, publish_life
from tacit.runtime.launcher.store import hosted_store

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "TACIT_LIFE": "2", "TACIT_MIN_WORKERS": "3"}


def test_a_reader_sees_what_the_launcher_has_published() -> None:
    store = HashStore()
    lives = LaunchedLives(store, VARIABLES)
    assert (lives.seat, lives.size, lives.life, lives.min_workers, lives.is_elastic) == (1, 4, 2, 3, True)
    publish_life(store, 2, 1)
    assert (lives.current_life(2), lives.dead(2, 1), lives.is_gone(2)) == (1, None, False)
    publish_end(store, 2, 1, -9)
    publish_life(store, 2, 2)
    assert (lives.current_life(2), lives.dead(2, 1), lives.dead(2, 2)) == (2, Ended(-9), None)
    publish_end(store, 2, 2, 0)
    publish_gone(store, 2)
    assert (lives.dead(2, 2), lives.is_gone(2), lives.is_gone(3)) == (Ended(0), True, False)
    assert lives.dead(2, 2), "a life that has finished has ended too"
    assert (Ended(-9).signal, Ended(3).signal, Ended(-40).signal) == ("SIGKILL", None, "signal 40")


def test_the_end_of_a_life_is_final() -> None:
    store = HashStore()
    lives = LaunchedLives(store, VARIABLES)
    publish_end(store, 0, 1, 1)
    publish_gone(store, 0)
    assert lives.dead(0, 1) and lives.is_gone(0)
    store.delete_key("tacit/launch/dead/0/1")
    store.delete_key("tacit/launch/gone/0")
    assert lives.dead(0, 1) == Ended(1) and lives.is_gone(0)


@pytest.mark.parametrize(
    "entry", [b"", b"[]", b'{"exit_code": null}', b"\xff", b"gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU"]
)
def test_entries_that_do_not_parse_count_as_absent(entry: bytes) -> None:
    store = HashStore()
    for key in ("life/2", "dead/2/1", "gone/2"):
        store.set(f"tacit/launch/{key}", entry)
    lives = LaunchedLives(store, VARIABLES)
    assert (lives.current_life(2), lives.dead(2, 1), lives.is_gone(2)) == (1, None, False)
    publish_end(store, 2, 1, -9)
    assert lives.dead(2, 1) == Ended(-9)


def test_prefixes_of_sessions_are_ignored() -> None:
    store = HashStore()
    publish_life(store, 2, 5)
    lives = LaunchedLives(PrefixStore("tacit/0/0", PrefixStore("/worker/attempt_0", store)), VARIABLES)
    assert lives.current_life(2) == 5
    lives.claim()
    assert store.check(["tacit/launch/claim/1/2"])


@pytest.mark.parametrize("variables", [{}, {"RANK": "1", "WORLD_SIZE": "4"}], ids=["alone", "torchrun"])
def test_without_the_launcher_nothing_is_known(variables: dict[str, str]) -> None:
    store = HashStore()
    publish_end(store, 0, 1, -9)
    publish_gone(store, 0)
    lives = LaunchedLives(store, variables)
    lives.claim()
    LaunchedLives(store, variables).claim()
    assert (lives.is_elastic, lives.life, lives.min_workers) == (False, 1, int(variables.get("WORLD_SIZE", "1")))
    assert (lives.current_life(0), lives.dead(0, 1), lives.is_gone(0)) == (1, None, False)


def test_one_process_has_a_seat_and_life() -> None:
    store = HashStore()
    LaunchedLives(store, VARIABLES).claim()
    LaunchedLives(store, VARIABLES).claim()  # a second session of this process
    LaunchedLives(store, VARIABLES | {"TACIT_LIFE": "3"}).claim()
    store.set("tacit/launch/claim/1/2", f"another/{os.getpid()}")
    with pytest.raises(TacitError, match=r"another process already has RANK=1 with TACIT_LIFE=2; start every process"):
        LaunchedLives(store, VARIABLES).claim()


def test_attach_refuses_a_seat_that_another_process_has_and_does_not_wait_for_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = hosted_store()
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**VARIABLES, **where}.items():
        monkeypatch.setenv(name, value)
    store.set("tacit/launch/claim/1/2", "another process")
    with pytest.raises(TacitError, match="another process already has RANK=1 with TACIT_LIFE=2"):
        Environment(5.0)
    store.delete_key("tacit/launch/claim/1/2")
    environment = Environment(60.0)
    environment.publish("place", "here")
    publish_end(store, 2, 1, 0)
    publish_gone(store, 2)
    why = (
        "worker 2 was lost at 0 s and tacit.attach needs every worker; its own output says why. Every worker must call"
    )
    with pytest.raises(PeerLost, match=why):  # and not after a minute
        environment.gather("place")
    environment.is_asked_to_end = lambda: True
    with pytest.raises(Interrupted, match="terminated"):
        environment.gather("place", [0])
    assert environment.gather("place", [1]) == ["here"]


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("5", "RANK=5 must be from 0 to 1: there are WORLD_SIZE=2 workers; start them with tacit launch or torchrun"),
        ("0", "MASTER_PORT=[0-9]+ is in use on this machine, and rank 0 opens the workers' store there; choose"),
    ],
)
def test_variables_set_by_hand_that_cannot_be(rank: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1]), "WORLD_SIZE": "2"}
        for name, value in {**where, "RANK": rank}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TacitError, match=message):
            Environment(5.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"TACIT_MIN_WORKERS": "5"}, "TACIT_MIN_WORKERS=5 must be from 1 to 4, the number of seats"),
        ({"TACIT_MIN_WORKERS": "0"}, "TACIT_MIN_WORKERS=0 must be a whole number, at least 1"),
        ({"TACIT_LIFE": "first"}, "TACIT_LIFE=first must be a whole number, at least 1; tacit launch sets it"),
        ({"RANK": "4"}, "RANK=4 must be from 0 to 3: there are WORLD_SIZE=4 seats"),
        ({"RANK": "-1"}, "RANK=-1 must be a whole number, at least 0"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_variables_that_cannot_be(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchedLives(HashStore(), VARIABLES | changed)
