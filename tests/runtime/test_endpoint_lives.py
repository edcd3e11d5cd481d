"""A peer that comes back as a new life: words of earlier lives are dropped, connections are made anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from tacit.core.messages import TensorMessage
from tacit.core.network import SERVER
from tacit.errors import PeerLost, TimedOut
from tests.runtime.test_endpoint import End, Enquiry, Note, close, ends, wait_until

pytestmark = pytest.mark.timeout(30)


def test_a_server_hears_of_the_loss_between_the_messages_of_two_lives():
    store = HashStore()
    server, first = End(store, SERVER, [0]), End(store, 0, [SERVER])
    first.endpoint.send(SERVER, Note(1))
    assert server.endpoint.receive(Note) == (0, Note(1))
    first.endpoint.send(SERVER, Note(2))
    second = End(store, 0, [SERVER], life=2)
    second.endpoint.send(SERVER, Note(3))
    wait_until(lambda: server.endpoint.life_of(0) == 2)
    assert server.endpoint.receive(Note) == (0, Note(2))
    with pytest.raises(PeerLost, match="worker 0 was lost"):
        server.endpoint.receive(Note)
    assert server.endpoint.receive(Note) == (0, Note(3)) and server.endpoint.lost == []
    first.endpoint.send(SERVER, Note(4))  # of the earlier life: dropped
    second.endpoint.send(SERVER, Note(5))
    assert server.endpoint.receive(Note) == (0, Note(5))
    server.endpoint.send(0, Note(6))
    assert second.endpoint.receive(Note) == (SERVER, Note(6))
    with pytest.raises(TimedOut):
        first.endpoint.receive(Note, timeout_s=0.1)
    second.endpoint.fail(RuntimeError("it is lost, too"))
    close(second)
    with pytest.raises(PeerLost):
        server.endpoint.receive(Note)
    assert server.endpoint.lost == [0]
    third = End(store, 0, [SERVER], life=3)  # after its loss was reported
    third.endpoint.send(SERVER, Note(7))
    assert server.endpoint.receive(Note) == (0, Note(7))
    close(server, third, first)


def test_an_answer_that_an_earlier_life_owes_is_not_waited_for():
    store = HashStore()
    asker, first = End(store, 0, [1]), End(store, 1, [0])
    asker.endpoint.send(1, Enquiry(1))  # which the first life never handles
    second = End(store, 1, [0], life=2)
    second.endpoint.start_handling()
    second.endpoint.send(0, TensorMessage(torch.zeros(1)))
    assert asker.endpoint.receive(TensorMessage)[0] == 1
    with pytest.raises(PeerLost, match=r"worker 1 was lost at .* receive\(Note, source=1\) needs a message from it"):
        asker.endpoint.receive(Note, source=1)
    asker.endpoint.send(1, Enquiry(2))
    assert asker.endpoint.receive(Note, source=1) == (1, Note(2))
    close(asker, first, second)


def test_who_waits_for_an_answer_of_an_earlier_life_is_woken_by_the_new_one():
    store = HashStore()
    asker, first = End(store, 0, [1]), End(store, 1, [0])
    asker.endpoint.send(1, Enquiry(1))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(asker.endpoint.receive, Note, 1)
        second = End(store, 1, [0], life=2)
        second.endpoint.send(0, TensorMessage(torch.zeros(1)))
        with pytest.raises(PeerLost):
            waiting.result(10.0)
    close(asker, first, second)


def test_a_life_that_others_have_lost_hears_of_it_when_it_speaks():
    with ends(0, SERVER) as (worker, server):
        worker.endpoint.send(SERVER, Note(1))
        assert server.endpoint.receive(Note) == (0, Note(1))
        server.endpoint._senders.open[0].lose(1.0)  # as after a cut of the network that only this end has noticed
        with pytest.raises(PeerLost):
            server.endpoint.receive(Note)
        worker.endpoint.send(SERVER, Note(2))
        with pytest.raises(PeerLost, match="the server was lost"):
            worker.endpoint.receive(Note, source=SERVER)


def test_an_endpoint_that_follows_its_peers_writes_to_their_new_lives_and_forgets_what_it_has_received():
    store = HashStore()
    with ThreadPoolExecutor() as pool:
        one, first = End(store, 0, [1]), End(store, 1, [0])
        for number in range(2):
            one.endpoint.send(1, Note(number))
        first.endpoint.send(0, Note(3))
        assert first.endpoint.receive(Note) == (0, Note(0))
        first.endpoint.wait_for_arrival({0: one.endpoint.sent[1, 1]})
        second = End(store, 1, [0], life=2)
        one.endpoint.wait_for_arrival({1: 1})
        one.endpoint.follow({1: 2})
        one.endpoint.forget_received()
        assert one.endpoint.sent[1, 2] == 0
        waiting = pool.submit(one.endpoint.receive, Note, 1)  # before it has written to that life
        second.endpoint.send(0, Note(4))
        assert waiting.result(10.0) == (1, Note(4))
        one.endpoint.send(1, Note(5))
        assert second.endpoint.receive(Note) == (0, Note(5))
        close(one, first, second)


def test_an_endpoint_that_follows_its_peers_connects_again_to_a_life_that_was_lost_in_a_cut():
    with ends(0, 1) as (one, other):
        one.endpoint.send(1, Note(1))
        assert other.endpoint.receive(Note) == (0, Note(1))
        for end, peer in ((one, 1), (other, 0)):
            end.endpoint.send(peer, Note(2))
            end.endpoint._senders.open[peer].lose(1.0)  # as after a cut that was longer than the network waits
        one.endpoint.send(1, Note(3))  # dropped
        for end, peer in ((one, 1), (other, 0)):
            end.endpoint.follow({peer: 1})
            end.endpoint.forget_received()
        one.endpoint.send(1, Note(4))
        other.endpoint.send(0, Note(5))
        assert last_of(other, 0) == Note(4) and last_of(one, 1) == Note(5)


def last_of(end: End, peer: int) -> Note:
    """Return the first message above 3: earlier ones may arrive late."""
    while (note := end.endpoint.receive(Note, peer)[1]).number <= 3:
        pass
    return note


def test_who_waits_for_a_message_may_be_called_away():
    class CalledAway(Exception):
        pass

    def check(peer: int | None, waited_s: float) -> None:
        if peer == 1 and waited_s > 0.06:
            raise CalledAway

    with ends(0, 1) as (one, other):
        one.endpoint.check_wait = check
        with pytest.raises(CalledAway):
            one.endpoint.receive(Note, 1)
        other.endpoint.send(0, Note(1))
        assert one.endpoint.receive(Note, 1) == (1, Note(1))
