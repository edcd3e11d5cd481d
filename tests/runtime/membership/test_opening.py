"""Opening a group: nobody waits for a member that is lost meanwhile, and a group that comes too late is closed."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from tacit.runtime.membership.opening import WatchedStore, open_watched
from tacit.runtime.process_groups import Group


def test_a_group_is_opened_and_its_error_is_passed_on():
    group: Any = SimpleNamespace()
    assert open_watched(HashStore(), lambda store: group, lambda: True) is group

    def fail(store: Any) -> Group:
        raise RuntimeError("no route")

    with pytest.raises(RuntimeError, match="no route"):
        open_watched(HashStore(), fail, lambda: False)


def test_a_member_that_is_lost_is_not_waited_for_and_a_late_group_is_closed():
    goes_on, closed = Event(), Event()

    class Late(Group):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            closed.set()

    def make(store: Any) -> Group:
        goes_on.wait(10.0)  # gloo connects again and again
        return Late()

    with pytest.raises(RuntimeError, match="a member was lost while its group was opened"):
        open_watched(HashStore(), make, lambda: True)
    assert not closed.is_set()
    goes_on.set()
    assert closed.wait(10.0)


def test_a_wait_for_an_address_ends_when_the_group_is_given_up():
    store = WatchedStore(HashStore())
    store.is_closed = True
    with pytest.raises(RuntimeError, match="lost"):
        store.wait(["never"])
