"""Sharding: the model is divided among several servers, which all make the same updates.

The first shard is the leader. The others tell it which pushes they have (``ShardReport``). From the pushes that all
shards have, it decides which make up an update, and sends their ranks and numbers to the other shards (``ShardBatch``).
So all parts of the model use the same gradients, and a learner that is lost between its sends to two shards stops
nobody. Between two updates the leader lets all shards write their part of a checkpoint (``CheckpointRequest``).

In the sync kinds the other shards send each new version to all learners, and a learner waits for the version
that belongs to the leader's. Learners that need not wait for an answer push faster than the leader can read reports, so
each shard keeps and reports only as many pushes of a learner as one update may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tacit.core.network import SERVER, server_address
from tacit.core.worker import Server
from tacit.strategies.servers.messages import (
    CheckpointRequest,
    PartWritten,
    Pushed,
    ServerLeave,
    ShardBatch,
    ShardReport,
    ToServer,
    ToShards,
)

Named = tuple[int, int]
"""A push by its learner's rank and its number."""


class ShardGroup:
    """One shard's link to the other shards. A server without sharding is the leader of a group of one.

    most: pushes of one learner to keep between two updates; None: all. An update drops those that it does not use, so
    it never uses more than the first K of a learner, which are the same in all shards.
    """

    def __init__(self, count: int, server: Server, most: int | None = None) -> None:
        self._count, self._server = count, server
        self._most = most if count > 1 else None
        self._kept: dict[int, set[int]] = {}  # by learner: the numbers of its pushes that are not used yet
        self.is_leader = server.shard == 0
        self.leader_has_ended = self.is_leader
        self._queue: list[ToShards] = []  # from the leader, not yet used
        self.reports: dict[Named, set[int]] = {}  # at the leader: by push, the other shards that have it
        self._latest: dict[int, int] = {}  # at the leader: by learner, the number of its last push

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

    def next_batch(self, pending: Iterable[Pushed]) -> list[Pushed]:
        """Return the pushes of the oldest announced update, which this shard has reported; nothing if there is none."""
        if not self._queue or not isinstance(announced := self._queue[0], ShardBatch):
            return []
        oldest_first = {(source, push.number): (source, push) for source, push in reversed([*pending])}
        named = zip(announced.ranks.tolist(), announced.numbers.tolist(), strict=True)
        batch = [found for one in named if (found := oldest_first.get(one)) is not None]
        if len(batch) < len(announced.ranks):
            return []
        del self._queue[0]
        return batch

    # Which shards have which pushes.

    def has_enough(self, source: int) -> bool:
        """Whether no update will use another push of a learner at the present version."""
        return self._most is not None and len(self._kept.get(source, ())) >= self._most

    def arrived(self, source: int, number: int) -> None:
        """Note a push that this shard has, and tell the leader."""
        if self._most is not None:
            self._kept.setdefault(source, set()).add(number)
        if not self.is_leader:
            self._server.network.send(SERVER, ShardReport(source, number))
        elif self._count > 1:
            self._latest[source] = number
            self.reports.setdefault((source, number), set())

    def take_report(self, shard: int, report: ShardReport) -> None:
        """Note that another shard has a push. Called by the leader, for pushes that it will get or has not used yet."""
        push = report.rank, report.number
        if push in self.reports or report.number > self._latest.get(report.rank, -1):
            self.reports.setdefault(push, set()).add(shard)

    def complete(self, pending: Sequence[Pushed]) -> Sequence[Pushed]:
        """Return the pushes that all shards have."""
        if not self.reports:
            return pending
        return [one for one in pending if len(self.reports.get((one[0], one[1].number), ())) == self._count - 1]

    def forget(self, source: int, number: int) -> None:
        """Drop what is known of a push that is used now, or never."""
        if source in self._kept:
            self._kept[source].discard(number)
        if self._count > 1 and self.is_leader:
            self._latest[source] = max(number, self._latest.get(source, -1))
            self.reports.pop((source, number), None)

    def forget_learner(self, source: int) -> None:
        """Drop what is known of the pushes of a learner that has joined: it counts them anew."""
        self._latest.pop(source, None)
        self._kept.pop(source, None)
        for push in [push for push in self.reports if push[0] == source]:
            del self.reports[push]

    def _send(self, message: ToServer) -> None:
        for shard in range(1, self._count):
            self._server.network.send(server_address(shard), message)
