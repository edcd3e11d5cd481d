"""The part of a simulated trace that one session sees."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.record.trace import Column, Trace


class SessionTrace(Trace):
    """The events of one worker in the trace of all; for rank 0 also those of the servers. Stores no events itself."""

    def __init__(self, whole: Trace, rank: int) -> None:
        super().__init__()
        self._whole, self._rank = whole, rank
        self.rows = whole.rows

    def __len__(self) -> int:
        return len(self.in_order()["rank"])

    @property
    def vocabulary(self) -> list[str]:
        return self._whole.vocabulary

    def in_order(self) -> dict[str, Column]:
        columns = self._whole.in_order()
        are_mine = self._are_mine(columns["rank"])
        return {name: column[are_mine] for name, column in columns.items()}

    def unordered(self, names: Sequence[str], kind: str | None = None, label: str | None = None) -> list[Column]:
        ranks, *found = self._whole.unordered(["rank", *names], kind, label)
        are_mine = self._are_mine(ranks)
        return [column[are_mine] for column in found]

    def _pack(self) -> None:
        self._whole._pack()

    def _are_mine(self, ranks: Column) -> Column:
        is_mine: Column = ranks == self._rank
        return is_mine | (ranks < 0) if self._rank == 0 else is_mine
