"""SwarmSGD's blocking form: pairs of a random matching average, and both partners end with the mean of their models.

The paper draws one edge after another; the two nodes of an edge take their local steps and then average. Here all pairs
of a random matching average after every ``local_steps`` steps. On the complete graph with n even, a matching leaves 1 −
n/(2(n − 1)) of Γ. With ``Geometric`` a matching is drawn after every step, and each of its pairs averages with
probability 1/mean: a node's number of steps is geometric, with this mean where every node has a partner. Pairs of one
matching share no node, so they are equivalent to a sequence of exchanges in any order.

All ranks draw the matchings from a shared random stream. Both partners therefore know of their exchange, and a node
without partner continues at once. Partners exchange after the same step of the run, so no cycle of nodes can wait for
each other, and a run of any number of steps ends.
"""

from __future__ import annotations

from typing import Final

from tacit.core.worker import Worker
from tacit.errors import BadMessage, LatticeOverflow, MisplacedCall, PeerLost
from tacit.strategies.swarm.codec import ModelCodec, bits_and_side, decode, distance
from tacit.strategies.swarm.local_steps import Geometric
from tacit.strategies.swarm.messages import SwarmDecoded, SwarmModel
from tacit.strategies.swarm.state import SwarmState
from tacit.topology.topology import Topology

_MOST_BITS: Final = 64
"""Models with more bits are sent uncompressed, so that they can always be decoded."""
_UNKNOWN_STEPS: Final = (
    "steps=None: SwarmSGD(blocking=True) needs the number of steps of the run to know its last exchange; "
    "use tacit.attach(…, steps=1000) or blocking=False."
)


def require_steps(worker: Worker) -> None:
    """Raise if the number of steps is unknown: a node whose data has ended could not know how long others wait."""
    if worker.steps is None and worker.size > 1:
        raise MisplacedCall(_UNKNOWN_STEPS)


def steps_to_matching(local_steps: int | Geometric) -> int:
    """Return the number of steps until the next matching."""
    return local_steps if isinstance(local_steps, int) else 1


def draw_partner(worker: Worker, topology: Topology, local_steps: int | Geometric) -> int | None:
    """Draw the matching of this step, the same on all ranks; return this node's partner, or None if it has none."""
    partner = topology.draw_matching(worker.size, worker.shared_random)[worker.rank]
    if isinstance(local_steps, int):
        return partner
    chances = worker.shared_random.random(worker.size)  # a pair uses that of its lower rank
    return None if partner is None or chances[min(worker.rank, partner)] >= 1 / local_steps.mean else partner


def average_with(worker: Worker, state: SwarmState, codec: ModelCodec, partner: int) -> None:
    """Average with ``partner``; skip the exchange if the partner is lost, or sends no model."""
    try:
        _average(worker, state, codec, partner)
    except (PeerLost, BadMessage):
        worker.note("skipped", 1)


def _average(worker: Worker, state: SwarmState, codec: ModelCodec, partner: int) -> None:
    """Set x ← (Q(x_i) + Q(x_j))/2 on both partners, after both have decoded the other's model."""
    network, own = worker.network, worker.parameters
    if codec.lattice is not None:
        codec.observe(distance(own, state.base))
    encoded, theirs = codec.encode(own, own), None
    network.send(partner, SwarmModel(state.exchanges, encoded.body, encoded.outdated).owned())
    bits, side = (0, 0.0) if codec.lattice is None else bits_and_side(encoded.body)
    while True:
        if theirs is None:
            _, message = network.receive(SwarmModel, source=partner)
            try:
                theirs = decode(message, own)
            except LatticeOverflow as overflow:
                worker.note("overflow", bits_and_side(message.body)[0])
                codec.observe(2 * overflow.radius)
        if codec.lattice is None:
            if theirs is None:
                raise BadMessage(f"worker {partner} sent a lattice vector where models are sent uncompressed.")
            break
        network.send(partner, SwarmDecoded(theirs is not None))
        is_decoded = network.receive(SwarmDecoded, source=partner)[1].is_decoded
        if is_decoded and theirs is not None:
            break
        if not is_decoded:
            if bits > _MOST_BITS:
                raise BadMessage(f"worker {partner} could not decode an uncompressed model.")
            encoded, bits = codec.encode_again(encoded.points, bits, side), 2 * bits
            network.send(partner, SwarmModel(state.exchanges, encoded.body, encoded.outdated).owned())
    assert theirs is not None
    if codec.lattice is not None:
        codec.observe(distance(theirs, own))
    own.copy_(theirs.add(encoded.points).div_(2))
    state.base.copy_(own)
    worker.note("met", partner)
