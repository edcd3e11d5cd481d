"""Waits of workers: in which call a worker waits, at which line of the script, and which waits cannot end."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import torch

MESSAGES: Final = "messages"
"""The group of all waits for a message."""
_SHOWN_RANKS: Final = 8
_END: Final = "the end of "
_NOT_OF_THE_USER: Final = tuple(
    str(path) for path in (Path(__file__).parents[2], Path(torch.__file__).parent, sysconfig.get_path("stdlib"))
)
_METHODS: Final = {
    "_before": "optimizer.step()",
    "_after": "optimizer.step()",
    "__exit__": "session.close()",
    "__init__": "tacit.attach()",
}


@dataclass(frozen=True)
class Wait:
    """One worker's wait, as published to the others."""

    what: str
    group: str  # the process group of the collective, or MESSAGES
    number: int  # of the call in its group; equal on all members
    ranks: tuple[int, ...]  # members of the collective, or the possible sources of the message
    can_pass: bool  # collective: a member may have left the call already; message: a handler may send it
    method: str = ""  # the public method that waits; empty if unknown
    line: str = ""  # of the script; empty if unknown

    @property
    def is_for_message(self) -> bool:
        return self.group == MESSAGES

    @property
    def is_end_of_evaluation(self) -> bool:
        """Whether all workers have entered ``reported_model()``: one of them may evaluate for a long time."""
        return self.method.startswith(_END)

    def is_same_call(self, other: Wait) -> bool:
        """Whether two workers wait in one call. Two waits for messages never count as different calls."""
        if self.is_for_message and other.is_for_message:
            return True
        return (self.group, self.number, self.what) == (other.group, other.number, other.what)

    def is_held_up_by(self, other: Wait) -> bool:
        """Whether this wait needs a worker that waits at ``other`` to leave that wait first."""
        if self.is_for_message:  # between two receivers a message may be under way
            return not self.can_pass and not other.is_for_message
        has_passed = self.can_pass and other.group == self.group and other.number > self.number
        return not self.is_same_call(other) and not has_passed

    def text(self) -> str:
        details = "; ".join(part for part in (self.what if self.method else "", self.line) if part)
        return f"{self.method or self.what} ({details})" if details else self.what


def deadlocked_ranks(waits: Mapping[int, Wait]) -> set[int]:
    """Return the workers whose waits cannot end, because they need workers that wait in other calls.

    A collective needs all its members, a message only one of its possible sources.
    """
    blocked = set(waits)
    while free := {rank for rank in blocked if not _is_blocked(rank, waits, blocked)}:
        blocked -= free
    return blocked


def _is_blocked(rank: int, waits: Mapping[int, Wait], blocked: set[int]) -> bool:
    wait = waits[rank]
    held_up = [other in blocked and wait.is_held_up_by(waits[other]) for other in wait.ranks if other != rank]
    return bool(held_up) and all(held_up) if wait.is_for_message else any(held_up)


def call_site(thread: int) -> tuple[str, str]:
    """Return the outermost public method of the session in which ``thread`` is, and the innermost line of the user."""
    method = line = ""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__") == "tacit.session.session":
            name = frame.f_code.co_name
            method = _METHODS.get(name, method if name.startswith("_") else f"session.{name}()")
            caller = frame.f_back
            if name == "reported_model" and caller is not None and caller.f_code.co_name == "__exit__":
                method = _END + method
        elif not line and _is_of_the_user(frame.f_code.co_filename):
            line = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return method, line


def _is_of_the_user(file: str) -> bool:
    return not (file.startswith((*_NOT_OF_THE_USER, "<")) or "site-packages" in file or "dist-packages" in file)


def waits_text(waits: Mapping[int, Wait]) -> list[str]:
    """Return "worker 1 waits in …" for each call site; workers at the same site share one entry."""
    by_text: dict[str, list[int]] = {}
    for rank, wait in waits.items():
        by_text.setdefault(wait.text(), []).append(rank)
    return [f"{workers_text(ranks)} {'wait' if ranks[1:] else 'waits'} in {text}" for text, ranks in by_text.items()]


def workers_text(ranks: Iterable[int]) -> str:
    *first, last = map(str, ranks)
    if not first:
        return f"worker {last}"
    if len(first) >= _SHOWN_RANKS:
        first, last = first[:_SHOWN_RANKS], f"{len(first) + 1 - _SHOWN_RANKS} more"
    return f"workers {', '.join(first)} and {last}"
