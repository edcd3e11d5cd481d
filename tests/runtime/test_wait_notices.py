"""Notices of workers that wait in different calls, and the error when the time-out ends the run."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.core.messages import TensorMessage
from tacit.runtime.failures.waits import Wait, deadlocked_ranks
from tacit.strategies import Strategy
from tests.runtime.processes import outcomes, together

TIMEOUT_S = 6.0  # a notice comes after a quarter of it
RULE = "very rank must make the same calls in the same order"


class Notices(logging.Handler):
    """Log handler that keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def evaluate(session: tacit.Session) -> None:
    with session.reported_model():
        pass


def mean(session: tacit.Session) -> None:
    session.mean(1.0)


def barrier(session: tacit.Session) -> None:
    session.barrier()


def run(strategy: Strategy, call: Callable[[tacit.Session], None] | None, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Take eight steps; ``ranks`` make ``call`` after the fifth.

    Return what was logged here and how the run timed out.
    """
    notices = Notices()
    logging.getLogger("tacit").addHandler(notices)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    error = ""
    try:
        with tacit.attach(model, optimizer, strategy, steps=8, timeout_s=TIMEOUT_S) as session:
            for step in range(8):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                if call is not None and step == 4 and session.rank in ranks:
                    call(session)
    except tacit.TimedOut as timed_out:
        error = str(timed_out)
    return {"notices": notices.texts, "error": error}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("strategy", "call", "method"),
    [
        (tacit.LocalSGD(period=tacit.Every(4)), evaluate, r"session\.reported_model\(\)"),
        (tacit.AllReduce(), mean, r"session\.mean\(\)"),
    ],
    ids=["model", "mean"],
)
def test_a_call_on_rank_0_only_is_reported_with_the_call_of_every_rank(
    strategy: Strategy, call: Callable[[tacit.Session], None], method: str
):
    first, second = together(2, run, strategy, call, (0,))
    alone = rf"in {method} \(exchange of states; test_wait_notices\.py, line \d+\)"
    others = r"worker 1 waits in optimizer\.step\(\) \(all-reduce; test_wait_notices\.py, line \d+\)"
    [notice] = first["notices"]
    assert re.fullmatch(rf"worker 0 has waited \d+ s {alone}; {others}\. E{RULE}\.", notice), notice
    assert second["notices"] == []
    for result, waited in ((first, "exchange of states"), (second, "all-reduce")):
        text = rf"{waited} got no answer within timeout_s=6: worker 0 waits {alone}, {others}; e{RULE}\."
        assert re.fullmatch(text, result["error"]), result


@pytest.mark.timeout(120)
def test_the_lowest_of_several_ranks_reports_those_in_the_same_call():
    results = together(3, run, tacit.AllReduce(), barrier, (2,))
    [notice] = results[0]["notices"]
    assert (
        "worker 0 has waited" in notice and "; worker 1 waits there too; worker 2 waits in session.barrier()" in notice
    )
    assert [result["notices"] for result in results[1:]] == [[], []]
    assert all("workers 0 and 1 wait in optimizer.step()" in result["error"] for result in results), results


@pytest.mark.timeout(120)
def test_a_worker_that_waits_for_a_message_is_reported_too():
    first, second = outcomes(2, run, tacit.DPSGD(topology=tacit.Complete()), evaluate, (0,))
    [notice] = first["notices"]
    assert "worker 1 waits in optimizer.step() (receive(" in notice
    assert second["notices"] == []
    assert "worker 0 waits in session.reported_model()" in second["error"], second


class Mixed(Strategy[None]):
    """Calls a different collective on rank 0 than on the others."""

    def after_step(self, worker, state):
        if worker.rank == 0:
            worker.network.broadcast(torch.ones(3))
        else:
            worker.network.all_reduce_mean(torch.ones(3))


@pytest.mark.timeout(120)
def test_different_collectives_of_a_strategy_are_reported_by_rank():
    results = together(2, run, Mixed(), None, ())
    for text in (results[0]["notices"][0], *(result["error"] for result in results)):
        assert "in optimizer.step() (broadcast; test_wait_notices.py, line" in text
        assert "worker 1 waits in optimizer.step() (all-reduce; test_wait_notices.py, line" in text


class ReceivesOnRank0(Strategy[None]):
    """Waits for a message on rank 0 and in a collective on the others."""

    def after_step(self, worker, state):
        if worker.rank == 0:
            worker.network.receive(TensorMessage)
        else:
            worker.network.all_reduce_mean(torch.ones(3))


@pytest.mark.timeout(120)
def test_a_wait_for_a_message_that_cannot_come_is_reported_as_soon_as_a_collective():
    first, second = outcomes(2, run, ReceivesOnRank0(), None, ())
    [notice] = first["notices"]  # worker 0 writes only notices of deadlocks: it waits for a message
    assert "in optimizer.step() (receive(TensorMessage); test_wait_notices.py, line" in notice
    assert "worker 1 waits in optimizer.step() (all-reduce; test_wait_notices.py, line" in notice
    assert second["notices"] == []


def test_a_run_in_which_all_ranks_make_the_same_calls_has_no_notice():
    strategy = tacit.LocalSGD(period=tacit.Every(4))
    assert together(2, run, strategy, evaluate, (0, 1)) == [{"notices": [], "error": ""}] * 2


# Which waits cannot end.


def collective(number: int, ranks: tuple[int, ...], group: str = "all", what: str = "all-reduce", can_pass=False):
    return Wait(what, group, number, ranks, can_pass)


def message(*sources: int, may_be_handled: bool = False):
    return Wait("receive(Model)", "messages", 0, sources, may_be_handled)


@pytest.mark.parametrize(
    ("waits", "deadlocked"),
    [
        ({0: collective(1, (0, 1)), 1: collective(1, (0, 1))}, set()),  # a long exchange
        ({0: collective(1, (0, 1)), 1: collective(2, (0, 1))}, {0, 1}),
        ({0: collective(1, (0, 1)), 1: collective(1, (0, 1), what="all-gather")}, {0, 1}),
        (  # a group is at work
            {0: collective(1, (0, 1, 2)), 1: collective(1, (1, 2), "two"), 2: collective(1, (1, 2), "two")},
            set(),
        ),
        ({0: collective(1, (0, 1, 2)), 1: collective(1, (1, 2), "two")}, set()),  # worker 2 may come
        (
            {0: collective(1, (0, 1, 2)), 1: collective(1, (1, 2), "two"), 2: collective(1, (0, 2), "other")},
            {0, 1, 2},
        ),
        (  # 0 has sent it all
            {0: collective(2, (0, 1)), 1: collective(1, (0, 1), what="broadcast", can_pass=True)},
            set(),
        ),
        ({0: collective(1, (0, 1)), 1: collective(1, (0, 1), what="broadcast", can_pass=True)}, {0, 1}),
        ({0: collective(1, (0, 1)), 1: message(0)}, {0, 1}),
        ({0: collective(1, (0, 1)), 1: message(0, 1)}, {0, 1}),  # from any worker
        ({0: collective(1, (0, 1)), 1: message(0, may_be_handled=True)}, set()),  # worker 0's handler may answer
        ({0: collective(1, (0, 1)), 1: message(0, 1, -1)}, set()),  # the server may send
        ({0: collective(1, (0, 1, 2)), 1: message(0, 1, 2)}, set()),  # worker 2 may send
        ({0: message(1), 1: message(0)}, set()),  # messages may be under way
    ],
)
def test_waits_that_cannot_end_are_those_in_a_cycle(waits: dict[int, Wait], deadlocked: set[int]):
    assert deadlocked_ranks(waits) == deadlocked
