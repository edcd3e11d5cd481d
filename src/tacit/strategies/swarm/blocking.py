"""SwarmSGD's blocking form: rounds in which pairs meet and both partners end with the mean of their models.

The paper draws one edge after another, and its two ends take their local steps before they meet. Here all pairs of a
random matching meet at once, after every ``local_steps`` steps; a matching leaves 1 − n/(2(n − 1)) of Γ on the complete
graph, n even. With ``Geometric`` a matching is drawn after every step, and each of its pairs meets with probability
1/mean: every node has its own geometric number of steps between its meetings. Pairs that meet at the same step have no
node in common, so they are equal to interactions one after another, in any order.

Matchings are drawn from the stream that all ranks share: both partners know of their meeting, and a node without one
goes on at once. Partners meet after the same step of the run, so no cycle of nodes can wait, also where all evaluate
together, and a run of any number of steps ends.
"""

from __future__ import annotations

from typing import Final

from tacit.core.worker import Worker
from tacit.errors import LatticeOverflow, MisplacedCall, PeerLost
from tacit.strategies.swarm.local_steps import Geometric
from tacit.strategies.swarm.messages import ModelCodec, SwarmModel, SwarmVerdict, bits_and_side, distance, heard
from tacit.strategies.swarm.nonblocking import SwarmState
from tacit.topology.topology import Topology

_UNKNOWN: Final = (
    "SwarmSGD(blocking=True) must know when the last meeting is; say how many steps the run takes, "
    "tacit.attach(…, steps=1000), or use blocking=False."
)


def require_end(worker: Worker) -> None:
    """Raise where nobody knows the number of steps: one whose data has ended must know for how long others will wait
    for it.
    """
    if worker.steps is None and worker.size > 1:
        raise MisplacedCall(_UNKNOWN)


def steps_to_matching(local_steps: int | Geometric) -> int:
    """Return after how many steps the next matching is drawn."""
    return local_steps if isinstance(local_steps, int) else 1


def draw_partner(worker: Worker, topology: Topology, local_steps: int | Geometric) -> int | None:
    """Draw the matching that all ranks draw after this step; return this node's partner, None if it meets no other
    node.
    """
    partner = topology.draw_matching(worker.size, worker.shared_random)[worker.rank]
    if isinstance(local_steps, int):
        return partner
    chances = worker.shared_random.random(worker.size)  # of each pair that of its lower rank counts
    return None if partner is None or chances[min(worker.rank, partner)] >= 1 / local_steps.mean else partner


def meet(worker: Worker, state: SwarmState, tongue: ModelCodec, partner: int) -> None:
    """Average with ``partner``, unless it is lost."""
    try:
        _average(worker, state, tongue, partner)
    except PeerLost:
        worker.note("skipped", 1)


def _average(worker: Worker, state: SwarmState, tongue: ModelCodec, partner: int) -> None:
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
