"""SwarmSGD's blocking form: rounds in which pairs meet and both partners end with the mean of their models.

Who meets whom in a round is drawn from the stream that all ranks share: both partners know of their meeting, whoever has no partner goes on at
once, and since everybody's meetings come in the order of the rounds no cycle of nodes can wait. A drawn number of local steps is drawn from there
too, one for all: nodes that wait for each other gain nothing from steps of their own, and an evaluation finds them at the same one.
"""

from __future__ import annotations

from typing import Final

from tacit.errors import LatticeOverflow, MisplacedCall, PeerLost
from tacit.strategies.swarm.exchanges import SwarmState
from tacit.strategies.swarm.words import SwarmModel, SwarmVerdict, Tongue, bits_and_side, distance, heard
from tacit.worker import Worker

_UNKNOWN: Final = (
    "SwarmSGD(blocking=True) must know when the last meeting is; say how many steps the run takes, "
    "tacit.attach(…, steps=1000), or use blocking=False."
)


def require_end(worker: Worker) -> None:
    """Raise where nobody knows the number of steps: one whose data has ended must know for how long others will wait for it."""
    if worker.steps is None and worker.size > 1:
        raise MisplacedCall(_UNKNOWN)


def meet(worker: Worker, state: SwarmState, tongue: Tongue, partner: int) -> None:
    """Average with ``partner``, unless it is lost."""
    try:
        _average(worker, state, tongue, partner)
    except PeerLost:
        worker.note("skipped", 1)


def _average(worker: Worker, state: SwarmState, tongue: Tongue, partner: int) -> None:
    """Both partners: x ← (Q(x_i) + Q(x_j))/2, once each has understood the other."""
    network, own = worker.network, worker.parameters
    if tongue.lattice is not None:
        tongue.observe(distance(own, state.base))
    spoken, theirs = tongue.say(own, own), None
    network.send(partner, SwarmModel(state.meetings, spoken.body, spoken.outdated).owned())
    bits, side = (0, 0.0) if tongue.lattice is None else bits_and_side(spoken.body)
    while True:
        if theirs is None:
            _, words = network.receive(SwarmModel, source=partner)
            try:
                theirs = heard(words, own)
            except LatticeOverflow as overflow:
                worker.note("overflow", bits_and_side(words.body)[0])
                tongue.observe(2 * overflow.radius)
        if tongue.lattice is None:
            break
        network.send(partner, SwarmVerdict(theirs is not None))
        is_understood = network.receive(SwarmVerdict, source=partner)[1].is_understood
        if is_understood and theirs is not None:
            break
        if not is_understood:
            spoken, bits = tongue.say_again(spoken.points, bits, side), 2 * bits
            network.send(partner, SwarmModel(state.meetings, spoken.body, spoken.outdated).owned())
    assert theirs is not None
    if tongue.lattice is not None:
        tongue.observe(distance(theirs, own))
    own.copy_(theirs.add(spoken.points).div_(2))
    state.base.copy_(own)
    worker.note("met", partner)
