"""The end of a session: its run, errors and rescue checkpoints, and everything that is undone."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

from tacit.errors import Interrupted, MisplacedCall, NotFinite, PeerLost, RunError, TacitError, TimedOut
from tacit.record.run import Run
from tacit.session.attaching import SessionParts, mark_attached, unmark_attached
from tacit.session.backend import SessionBackend
from tacit.session.options import SessionOptions
from tacit.session.probing import Probe, ProbeComplete
from tacit.session.recording.last_records import collect_records, publish_record

if TYPE_CHECKING:
    from tacit.session.session import Session

_logger: Final = logging.getLogger("tacit")


class SessionEnd:
    """Ends one session, once: by ``close`` after its last round, or by ``fail`` on an error."""

    def __init__(self, backend: SessionBackend, run: Run, options: SessionOptions) -> None:
        self._backend, self._run, self._options = backend, run, options
        self._session: Session | None = None
        self._parts: SessionParts | None = None  # None while the session is being attached
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.is_over = False

    def attached(self, session: Session, parts: SessionParts, handles: list[torch.utils.hooks.RemovableHandle]) -> None:
        """Take what must be undone at the end: registered parameters and the ``handles`` of optimizer hooks."""
        self._session, self._parts, self._handles = session, parts, handles
        mark_attached(session, parts.flat)
        if self._options.probe is not None:
            self._options.probe.end = self.fail
        if self._backend.world == "processes":
            atexit.register(self._end_with_process)

    def check_open(self, what: str) -> None:
        """Raise if the session is over."""
        if self.is_over:
            raise MisplacedCall(f"{what} after the session was closed; attach again to continue.")

    def complete_run(self, records: list[bytes], status: str) -> None:
        """Fill in the run from the records of the workers."""
        assert self._parts is not None
        parts, run = self._parts, self._run
        run.workload = run.workload or f"<{type(parts.module).__name__}>"
        run.module = parts.module
        parts.recorder.complete(run, records, status, parts.flat, parts.hooks.step)
        plan = self._options.plan
        if plan is not None and plan.ended is not None and self._backend.rank == 0 and status == "finished":
            plan.ended(run)

    def close(self, error: BaseException | None = None) -> None:
        """Remove hooks and registered parameters, and close log and backend."""
        self.is_over = True
        atexit.unregister(self._end_with_process)
        for handle in self._handles:
            handle.remove()
        if self._parts is not None:
            assert self._session is not None
            unmark_attached(self._session, self._parts.flat)
            self._parts.hooks.close()
            self._parts.flat.release()
            self._parts.recorder.close()
        self._backend.close(error)

    # Errors.

    @contextmanager
    def on_error(self) -> Iterator[None]:
        """End the session if the block raises."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """End without a last round; attach the run, with the numbers of all workers that can report, to ``error``."""
        if self.is_over:
            return
        self.is_over = True
        if self._options.probe is not None:
            self._end_probe(self._options.probe, error)
            return
        self._backend.abort(error)  # first, because what follows takes time
        try:
            if self._parts is not None:
                begun_s, record = time.monotonic(), self._parts.recorder.packed()
                publish_record(self._backend, record, error)  # before the rescue, which may wait for a worker in vain
                self._rescue_or_note(self._parts, error)
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}"
                self.complete_run(collect_records(self._backend, record, error, begun_s), status)
                if isinstance(error, RunError | Interrupted):
                    error.run = self._run
        except Exception as second:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"The incomplete run could not be kept: {second}")
        finally:
            self.close(error)

    def _end_probe(self, probe: Probe, error: BaseException) -> None:
        """End a probed session; rank 0 keeps what all ranks have recorded, whether the probe is complete or not."""
        probe.on_end()
        is_complete = isinstance(error, ProbeComplete)
        if not is_complete:
            self._backend.abort(error)
        try:
            if self._parts is not None:
                records = probe.collect(self._backend, self._parts.recorder.packed(), error)
                self.complete_run(records, "finished" if is_complete else f"failed: {error}")
                probe.run = self._run
        except Exception as second:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"What the probe has measured could not be kept: {second}")
        finally:
            self.close(None if is_complete else error)

    def _rescue_or_note(self, parts: SessionParts, error: BaseException) -> None:
        """Write a rescue checkpoint if one is due; say so if it cannot be written."""
        try:
            self._rescue(parts, error)
        except Exception as second:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"No checkpoint was written into {self._options.rescue_folder}: {second}")

    def _rescue(self, parts: SessionParts, error: BaseException) -> None:
        """Write a rescue checkpoint after the loss of a worker, a time-out or SIGTERM.

        The worker that hosts the server writes one after any error: no other worker has the server's model.
        """
        folder = self._options.rescue_folder
        is_real = self._backend.world == "processes"  # simulated workers could not wait for each other's files
        has_begun = parts.hooks.step > 0  # otherwise nothing is lost, and an older checkpoint must stay
        reason = error.reason or "" if isinstance(error, PeerLost) else ""
        has_diverged = isinstance(error, NotFinite) or reason.startswith("NotFinite")
        if folder is None or not (is_real and has_begun) or has_diverged:
            return
        if parts.server is None:
            if not isinstance(error, PeerLost | TimedOut | Interrupted):
                return
            written = parts.shard.rescue(folder, error)
            which = "all" if isinstance(error, Interrupted) else "the remaining"
            if written is not None:
                error.add_note(f"The state of {which} workers is in {written}; the same command resumes from it.")
        elif parts.server.can_rescue and isinstance(error, Exception | Interrupted):  # not after Ctrl-C
            written = parts.server.checkpoint(folder, parts.hooks)
            error.add_note(f"The server's model is in {written}; the same command resumes from it.")

    def _end_with_process(self) -> None:
        """End a session that the script did not close: with the script's error, or with a warning."""
        if self.is_over:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # what Python has just printed
        if error is None:
            _logger.warning(
                "session.close() was never called, so the last round did not run; "
                "call it after the loop, or use `with`."
            )
            error = TacitError("the script ended without session.close()")
        self.fail(error)
