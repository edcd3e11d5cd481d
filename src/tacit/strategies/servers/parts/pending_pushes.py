"""The gradients of a server that no update has used yet. An update uses those that all shards have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tacit.strategies.servers.messages import Pushed, ServerPush
from tacit.strategies.servers.parts.sharding import ShardGroup


class PendingPushes:
    """Pushes in the order of arrival."""

    def __init__(self, shards: ShardGroup) -> None:
        self._shards, self._pushes = shards, list[Pushed]()

    def __iter__(self) -> Iterator[Pushed]:
        return iter(self._pushes)

    def __len__(self) -> int:
        return len(self._pushes)

    def add(self, source: int, push: ServerPush) -> None:
        self._pushes.append((source, push))
        self._shards.arrived(source, push.number)

    def used_up(self, batch: Sequence[Pushed]) -> list[Pushed]:
        """Return the pushes of ``batch`` and, of their learners, older ones.

        Those are of an earlier life, and no update will use them: a learner's pushes are used in order. Only a shard
        that is not the leader, which hears of no loss, has any.
        """
        latest = {source: push.number for source, push in batch}
        return [one for one in self._pushes if one[1].number <= latest.get(one[0], -1)]

    def remove(self, pushes: Sequence[Pushed]) -> None:
        """Remove ``pushes``, which an update has used or which no update will use."""
        removed = {id(push) for _, push in pushes}
        self._pushes = [one for one in self._pushes if id(one[1]) not in removed]
        for source, push in pushes:
            self._shards.forget(source, push.number)

    @property
    def complete(self) -> Sequence[Pushed]:
        """The pushes that all shards have, at the leader."""
        return self._shards.complete(self._pushes)

    @property
    def incomplete(self) -> list[Pushed]:
        """The pushes that another shard has not reported yet, at the leader; else none."""
        if not self._shards.reports:
            return []
        complete = {id(push) for _, push in self.complete}
        return [one for one in self._pushes if id(one[1]) not in complete]

    @property
    def incomplete_versions(self) -> list[int]:
        """The versions of the incomplete pushes, which count as gradients that are still being computed."""
        return [push.version for _, push in self.incomplete]
