"""Errors that occur during a run, with the facts that each one carries.

Bad arguments raise ``ValueError`` or ``TypeError`` when a specification is constructed. Errors *during* a run are
here:

    TacitError
    ├── RunError              a run failed; ``error.run`` holds its history and trace up to then
    │   ├── PeerLost          a worker that others wait for was lost
    │   ├── TimedOut          a worker that others wait for did not answer in time
    │   ├── MembersChanged    other workers take part, and an exchange must begin anew
    │   ├── LeftOut           the other workers continue without this one
    │   ├── Deadlock          workers wait, and no event is pending that could wake them
    │   ├── ReplayDiverged    a replay does something else than the recorded run
    │   ├── NotFinite         a loss or a gradient became NaN or infinite
    │   ├── Disagreement      ranks that must agree do not
    │   ├── ScriptFailed      a user's script raised an error, or ended too early
    │   └── MisplacedCall     a strategy communicated where it may not
    ├── BadMessage            bytes that are not a message
    ├── LatticeOverflow       a vector that is too far from the reference to be decoded
    ├── BadData               a data file that cannot be read, with its line
    └── FolderExists          a folder that would have been overwritten

    Interrupted               Ctrl-C, a KeyboardInterrupt with ``run`` attached
    SpeedBias                 a warning: the data of fast learners weigh more than those of slow ones
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.record.run import Run


_WITHOUT_THE_FAULT = "remove the fault, or use a strategy that does not wait for all workers."
WITHOUT_THE_WORKER = "remove the fault, or let the strategy catch PeerLost and continue without that worker."


class TacitError(Exception):
    """Base class of the errors that tacit raises during a run."""


class RunError(TacitError):
    """A run failed.

    ``run`` holds its history and trace up to that time, once they are attached.
    """

    run: Run | None = None


class PeerLost(RunError):
    """Worker ``rank``, which others wait for, was lost at ``at_s``.

    reason: the error that it reported before its end. ranks: all lost workers. need: what ``waiting_for`` needs of the
    lost worker.
    """

    def __init__(
        self,
        rank: int,
        at_s: float,
        waiting_for: str,
        way_out: str = _WITHOUT_THE_FAULT,
        reason: str | None = None,
        *,
        need: str = "needs every worker",
        ranks: Iterable[int] = (),
    ) -> None:
        self.rank, self.at_s, self.waiting_for, self.reason = rank, at_s, waiting_for, reason
        self.ranks = tuple(ranks) or (rank,)
        self.lost = f"{_all_of(self.ranks)} {'was' if len(self.ranks) == 1 else 'were'} lost"
        super().__init__(f"{self.lost} at {at_s:.6g} s and {waiting_for} {need}; {way_out}")


class TimedOut(RunError):
    """No answer came within ``timeout_s``.

    places: where each rank waits, and the rule, if ranks wait in different calls.
    """

    def __init__(self, waiting_for: str, missing: Iterable[int], timeout_s: float, places: str | None = None) -> None:
        self.waiting_for, self.missing, self.timeout_s, self.places = waiting_for, tuple(missing), timeout_s, places
        who = f" from {_ranks(self.missing)}" if self.missing or places is None else ""
        why = "; a larger timeout_s waits longer" if places is None else f": {places}"
        super().__init__(f"{waiting_for} got no answer{who} within timeout_s={timeout_s:.6g}{why}.")


class MembersChanged(RunError):
    """Other workers take part than when the exchange ``interrupted`` began. ``regrouped`` was called meanwhile.

    A strategy that catches it begins the exchange anew, with ``network.members``.
    """

    def __init__(self, interrupted: str) -> None:
        self.interrupted = interrupted
        super().__init__(
            f"the members changed during {interrupted}; catch tacit.MembersChanged and begin the exchange anew."
        )


class LeftOut(RunError):
    """The other workers continue without worker ``rank``, this one, which did not answer in time."""

    def __init__(self, rank: int, members: Iterable[int]) -> None:
        self.rank, self.members = rank, tuple(members)
        super().__init__(
            f"worker {rank} was left out of the run because it did not answer in time; "
            f"{_all_of(self.members)} {'continue' if len(self.members) > 1 else 'continues'} without it. "
            f"tacit launch --max-restarts starts such a worker again."
        )


class Deadlock(RunError):
    """Workers wait, and no event is pending that could wake them. ``waiting`` lists (rank, call, since_s)."""

    def __init__(self, waiting: Iterable[tuple[int, str, float]], now_s: float, seed: int) -> None:
        self.waiting, self.now_s, self.seed = tuple(waiting), now_s, seed
        shown = [f"  {_who(rank)} waits in {call} since {since_s:.6g} s" for rank, call, since_s in self.waiting[:8]]
        if len(self.waiting) > 8:
            shown.append(f"  … and {len(self.waiting) - 8} more")
        super().__init__(
            f"deadlock at {now_s:.6g} s with seed={seed}: no event is pending, and these calls never return:\n"
            + "\n".join(shown)
        )


class ReplayDiverged(RunError):
    """A replay does something else than the recorded run: ``rank`` ``does`` one thing, ``recorded`` is the other."""

    def __init__(self, rank: int, does: str, recorded: str) -> None:
        self.rank, self.does, self.recorded = rank, does, recorded
        super().__init__(
            f"the replay diverged from its record: {_who(rank)} {does} where the real run has {recorded}; "
            f"a replay needs the workload, strategy, seed, steps and learning rates of the run, "
            f"and a run that was not resumed from a checkpoint."
        )


class NotFinite(RunError):
    """Worker ``rank`` computed a loss of ``value`` in step ``step``; or, as ``what`` says, a gradient that holds it."""

    def __init__(self, rank: int, step: int, value: float, what: str = "loss") -> None:
        self.rank, self.step, self.value, self.what = rank, step, value, what
        super().__init__(
            f"the {what} of {_who(rank)} is {value} in step {step}; a smaller learning rate is the usual way out "
            f"(the history up to here is kept)."
        )


class Disagreement(RunError):
    """Ranks disagree on ``what``: ``rank`` has ``mine``; the mean of all ranks, or each of ``others``, is ``mean``."""

    def __init__(
        self,
        what: str,
        mine: object,
        mean: object,
        rank: int,
        *,
        at_attach: bool = False,
        others: Iterable[int] = (),
        rule: str = "all ranks must make the same calls in the same order.",
    ) -> None:
        """others: the ranks that have ``mean``, if that is not a mean over all; rule: what these ranks must do."""
        self.what, self.mine, self.mean, self.rank, self.others = what, mine, mean, rank, tuple(others)
        if at_attach:
            first = "rank 0" if rank else "rank 0 when the run began"
            text = (
                f"ranks call tacit.attach with different settings: {what} is {mine} on rank {rank}, {mean} on {first}; "
                f"all ranks must run the same script with the same arguments."
            )
        elif self.others:
            they = f"rank{'s' * (len(self.others) > 1)} {', '.join(map(str, self.others))}"
            text = f"ranks disagree on the {what}: {mine} on rank {rank}, {mean} on {they}; {rule}"
        else:
            text = (
                f"ranks disagree on the {what}: rank {rank} holds {mine}, the mean over all ranks is {mean}; "
                f"a {what} must follow from reduced values alone, never from a rank's own."
            )
        super().__init__(text)


class MisplacedCall(RunError):
    """A blocking call where a worker may not block."""


class ScriptFailed(RunError):
    """The script of worker ``rank`` failed; ``lines``: the traceback within the script."""

    def __init__(self, rank: int, what: str, lines: Iterable[str] = ()) -> None:
        self.rank, self.what, self.lines = rank, what, tuple(lines)
        super().__init__("\n".join([f"the script of {_who(rank)} {what}", *self.lines]))


class BadMessage(TacitError):
    """Bytes that are not a message of tacit: truncated, corrupted, or of another version."""


class LatticeOverflow(TacitError):
    """A coordinate of the sent vector is farther than ``radius`` from the reference; the result is discarded."""

    def __init__(self, radius: float, side: float) -> None:
        self.radius, self.side = radius, side
        super().__init__(
            f"the reference is farther than radius={radius:.6g} from the sent vector; "
            f"use a larger side than {side:.6g}, or more bits."
        )


class BadData(TacitError):
    """A data file that cannot be read; the message names the file and the line."""


class FolderExists(TacitError):
    """A folder that would have been overwritten."""

    def __init__(self, folder: object, way_out: str) -> None:
        self.folder = folder
        super().__init__(f"the folder {folder} exists and is not empty; {way_out}")


class SpeedBias(UserWarning):
    """A server strategy uses fast learners more often than slow ones, and their data may differ."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run; ``run`` holds its history and trace up to then."""

    run: Run | None = None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return «; did you mean …?» for the known name nearest to ``name``, or the list of names if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    if close:
        return f"; did you mean {next(n for n in names if n.lower() == close[0])!r}?"
    return f"; known are {', '.join(names)}."


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition``: the one-line check of a specification's argument."""
    if not condition:
        raise ValueError(message)


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Name the file ``source`` in errors about what it holds."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error


def _who(rank: int) -> str:
    return "the server" if rank < 0 else f"worker {rank}"


def _all_of(ranks: tuple[int, ...]) -> str:
    """Return «worker 1», «workers 0 and 1», «workers 0, 1 and 2», or «the server and worker 0»."""
    if len(ranks) > 1 and min(ranks) >= 0:
        return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return " and ".join(_who(rank) for rank in ranks)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(_who(rank) for rank in ranks) if ranks else "any worker"


def __getattr__(name: str) -> Any:
    """Return the error that is now called ReplayDiverged for its old name, with a warning."""
    if name != "Diverged":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{__name__}.Diverged is deprecated and will be removed in version 0.3; use {__name__}.ReplayDiverged."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return globals()["ReplayDiverged"]
