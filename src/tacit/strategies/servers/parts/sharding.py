"""Sharding: the model is divided among several servers, which all make the same updates.

The first shard is the leader. It decides which pushes make up an update and sends their ranks and numbers to the other
shards (``ShardBatch``), so that all parts of the model use the same gradients. Between two updates it lets all shards
write their part of a checkpoint (``CheckpointRequest``). In the sync kinds the other shards send each new version to
all learners, and a learner waits for the version that belongs to the leader's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tacit.core.network import server_address
from tacit.core.worker import Server
from tacit.strategies.servers.messages import (
    CheckpointRequest,
    PartWritten,
    Pushed,
    ServerLeave,
    ServerPush,
    ShardBatch,
    ToServer,
    ToShards,
)


class ShardGroup:
    """One shard's link to the other shards. A server without sharding is the leader of a group of one."""

    def __init__(self, count: int, server: Server) -> None:
        self._count, self._server = count, server
        self.is_leader = server.shard == 0
        self.leader_has_ended = self.is_leader
        self._queue: list[ToShards] = []  # from the leader, not yet used

    @property
    def may_update(self) -> bool:
        """Whether the leader may still ask this shard for updates."""
        return not self.leader_has_ended or bool(self._queue)

    def announce(self, batch: Sequence[Pushed]) -> None:
        """Let the other shards make the same update. Called by the leader."""
        if self._count > 1:
            ranks = torch.tensor([source for source, _ in batch])
            numbers = torch.tensor([push.number for _, push in batch])
            self._send(ShardBatch(ranks, numbers).owned())

    def announce_end(self) -> None:
        """Tell the other shards that no update follows. Called by the leader."""
        self._send(ServerLeave())

    def add(self, message: ToShards, version: int) -> None:
        """Queue an update or a checkpoint of the leader. The leader itself passes on what it was asked for."""
        if self.is_leader:
            self._send(message)
        self._queue.append(message)
        self.write_checkpoints(version)

    def write_checkpoints(self, version: int) -> None:
        """Write this shard's part of the checkpoints that are next in the queue, at ``version``, its present one."""
        while self._queue and isinstance(request := self._queue[0], CheckpointRequest):
            del self._queue[0]
            failure = self._server.write_part(request.folder, version)
            self._server.network.send(0, PartWritten(version, failure))

    def next_batch(self, pending: Sequence[Pushed], is_present: Sequence[bool]) -> list[Pushed]:
        """Return the pushes of the oldest announced update; nothing until all of them have arrived.

        A learner may be lost after its push to the leader and before its push to this shard. A gradient of 0 takes the
        place of the one that will never arrive: this part of the model makes as many updates as the others.
        """
        if not self._queue or not isinstance(announced := self._queue[0], ShardBatch):
            return []
        oldest_first = {(source, push.number): (source, push) for source, push in reversed(pending)}
        batch = []
        for source, number in zip(announced.ranks.tolist(), announced.numbers.tolist(), strict=True):
            found = oldest_first.get((source, number))
            if found is None and is_present[source]:
                return []
            batch.append(found or (source, self._empty_push(number)))
        del self._queue[0]
        return batch

    def _empty_push(self, number: int) -> ServerPush:
        return ServerPush(number, 0, 0.0, 1.0, math.nan, torch.zeros_like(self._server.parameters))

    def _send(self, message: ToServer) -> None:
        for shard in range(1, self._count):
            self._server.network.send(server_address(shard), message)
