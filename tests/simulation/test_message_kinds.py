"""Messages are matched by kind, whichever class of that kind the sender used: every worker of a script defines its own
classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

import pytest

import tacit
from tacit import workloads
from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.simulation.scripts.run import simulate_script
from tacit.testing import toys

PREAMBLE = """
from dataclasses import dataclass
import torch
from torch import nn
import tacit

@dataclass(frozen=True)
class Word(tacit.Message):
    number: int

@dataclass(frozen=True)
class Request(Word):
    pass

@dataclass(frozen=True)
class Hello(Request):
    pass

@dataclass(frozen=True)
class Bye(Word):
    pass

def train(strategy, steps=4):
    torch.manual_seed(tacit.rank())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, strategy, steps=steps) as session:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
"""

RECEIVES = """
@dataclass(frozen=True, kw_only=True)
class Passing(tacit.Strategy[None]):
    def after_step(self, worker, state):
        mine = Hello if worker.step % 2 else Bye
        worker.network.send((worker.rank + 1) % worker.size, mine(worker.step))
        _, word = worker.network.receive({asked})
        assert type(word) is mine, type(word)
        worker.note("received", word.number)

train(Passing())
"""

HANDLES = """
@dataclass(frozen=True, kw_only=True)
class Answering(tacit.Strategy[dict]):
    handles = ({handled},)

    def init(self, worker):
        return {{"answered": 0}}

    def on_message(self, worker, state, source, message):
        match message:
            case Hello(number=number):
                state["answered"] += 1
                worker.network.send(source, Bye(number))

    def after_step(self, worker, state):
        worker.network.send((worker.rank + 1) % worker.size, Hello(worker.step))
        _, bye = worker.network.receive(Bye)
        assert type(bye) is Bye
        worker.note("answer", bye.number)

train(Answering())
"""

GATHERS = """
@dataclass(frozen=True, kw_only=True)
class Gathering(tacit.Strategy[None]):
    def after_step(self, worker, state):
        mine = Hello if worker.rank else Bye
        gathered = worker.network.all_gather(mine(worker.rank))
        assert [type(word) for word in gathered] == [Bye] + [Hello] * (worker.size - 1), gathered
        given = worker.network.all_to_all([mine(worker.rank)] * worker.size)
        assert [type(word) for word in given] == [Bye] + [Hello] * (worker.size - 1), given
        worker.note("gathered", sum(word.number for word in gathered))

train(Gathering())
"""

SERVER = """
@dataclass(frozen=True)
class Slope(Word):
    value: torch.Tensor

@dataclass(frozen=True)
class Fresh(tacit.Message):
    value: torch.Tensor

@dataclass(frozen=True, kw_only=True)
class Served(tacit.ServerStrategy[None]):
    def before_step(self, worker, state):
        worker.network.send(tacit.SERVER, Slope(worker.step, worker.gradient))
        worker.skip_update()

    def after_step(self, worker, state):
        _, fresh = worker.network.receive(Fresh)
        assert type(fresh) is Fresh
        worker.parameters.copy_(fresh.value)
        worker.note("received", worker.step)

    def init_server(self, server):
        return None

    def serve(self, server, state):
        for _ in range(4 * server.size):
            source, gradient = server.network.receive(Word)
            assert type(gradient) is Slope
            server.update(gradient.value)
            server.network.send(source, Fresh(server.parameters))

train(Served())
"""


NESTS = """
@dataclass(frozen=True)
class Holding(tacit.Message):
    body: Word
    rest: tuple[Word, ...]

@dataclass(frozen=True, kw_only=True)
class Nesting(tacit.Strategy[None]):
    def after_step(self, worker, state):
        sent = Holding(Hello(worker.step), (Bye(worker.step), Hello(worker.step)))
        worker.network.send((worker.rank + 1) % worker.size, sent)
        _, came = worker.network.receive(Holding)
        for one, kind in ((came.body, Hello), (came.rest[0], Bye), (came.rest[1], Hello)):
            assert type(one) is kind, one
        given = worker.network.all_gather(sent)
        assert all(type(one.body) is Hello for one in given)
        worker.note("received", came.rest[1].number)

train(Nesting())
"""


@pytest.fixture
def play(tmp_path):
    """Return a function that simulates a script after the preamble and returns the run."""

    def simulated(text: str, **options) -> tacit.Run:
        path = tmp_path / "train.py"
        path.write_text(PREAMBLE + dedent(text))
        return simulate_script(path, cluster=tacit.Cluster(workers=3), **options)

    return simulated


def notes(run: tacit.Run, label: str) -> list[tuple[int, float]]:
    return sorted((event.rank, event.value) for event in run.trace.of("note") if event.label == label)


EVERY_STEP = [(rank, float(step)) for rank in range(3) for step in range(1, 5)]


@pytest.mark.parametrize("host", ["greenlet", "thread"])
@pytest.mark.parametrize("asked", ["mine", "Word", "tacit.Message"])
def test_a_scripts_worker_receives_its_own_class_by_its_kind_or_one_it_derives_from(play, asked, host):
    run = play(RECEIVES.format(asked=asked), host=host)
    assert notes(run, "received") == EVERY_STEP


@pytest.mark.parametrize("handled", ["Hello", "Request"])
def test_a_scripts_handler_gets_messages_that_match_its_own_classes(play, handled):
    assert notes(play(HANDLES.format(handled=handled)), "answer") == EVERY_STEP


def test_a_scripts_worker_gathers_its_own_classes(play):
    assert notes(play(GATHERS), "gathered") == [(rank, 3.0) for rank in range(3) for _ in range(4)]


def test_a_scripts_server_receives_classes_of_the_worker_it_lives_with(play):
    assert len(notes(play(SERVER), "received")) == 12


def test_messages_within_a_message_are_the_receivers_own_classes_too(play):
    assert notes(play(NESTS), "received") == EVERY_STEP


def test_kinds_in_a_module_beside_the_script_are_matched_too(play, tmp_path):
    (tmp_path / "words.py").write_text(
        "from dataclasses import dataclass\nimport tacit\n\n"
        "@dataclass(frozen=True)\nclass Spoken(tacit.Message):\n    number: int\n"
    )
    run = play(
        "import words\n" + RECEIVES.format(asked="mine").replace("Hello if worker.step % 2 else Bye", "words.Spoken")
    )
    assert notes(run, "received") == EVERY_STEP


def test_a_finished_script_leaves_no_kinds_behind(play):
    text = "@dataclass(frozen=True)\nclass OfTheScript(Word):\n    pass\n" + GATHERS
    play(text)

    @dataclass(frozen=True)
    class OfTheScript(Message):  # a kind of that name in another module
        pass

    assert unpack(OfTheScript().pack()) == OfTheScript()


def make_strategy() -> tacit.Strategy:
    """Return a strategy whose message class is defined anew by every call."""

    @dataclass(frozen=True)
    class Anew(Message):
        number: int

    @dataclass(frozen=True, kw_only=True)
    class Throwing(tacit.Strategy[None]):
        def after_step(self, worker, state):
            worker.network.send(1 - worker.rank, Anew(worker.step))
            _, ball = worker.network.receive(Anew)
            assert type(ball) is Anew
            worker.note("received", ball.number)

    return Throwing()


def test_a_class_that_a_later_one_of_its_kind_replaced_is_still_matched():
    first, _ = make_strategy(), make_strategy()
    run = tacit.simulate(workloads.quadratic(dimension=3), first, cluster=tacit.Cluster(workers=2), steps=4)
    assert notes(run, "received") == [(rank, float(step)) for rank in range(2) for step in range(1, 5)]


# Rules that every world checks.


@dataclass(frozen=True, kw_only=True)
class AnswersTwice(toys.AskAround):
    def on_message(self, worker, state, source, message):
        super().on_message(worker, state, source, message)
        worker.network.send(source, toys.Answer(state.shared))


def test_a_simulated_handler_too_sends_one_reply_at_most():
    with pytest.raises(
        tacit.MisplacedCall, match="at most one reply per message received, and Answer to . is its second"
    ):
        tacit.simulate(workloads.quadratic(dimension=3), AnswersTwice(), cluster=tacit.Cluster(workers=2), steps=4)


CANCELS = """
@dataclass(frozen=True, kw_only=True)
class Hasty(tacit.Strategy[None]):
    handles = (Hello,)

    def on_message(self, worker, state, source, message):
        worker.abandon_step()

    def after_step(self, worker, state):
        worker.network.send((worker.rank + 1) % worker.size, Hello(worker.step))

train(Hasty())
"""


def test_a_script_that_abandons_steps_must_say_so(play):
    with pytest.raises(tacit.MisplacedCall, match="Hasty abandons a step, but cancels=False; set cancels = True"):
        play(CANCELS)
