"""Exit codes and error messages of commands: 0 success, 1 a run failed and was saved, 2 bad input, 130 Ctrl-C."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any, Final

import typer
from rich.markup import escape

from tacit.cli.screens.terminal import errors
from tacit.errors import RunError, TacitError

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


def explained(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``command`` to print an error as one message; with ``--debug``, as a traceback."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        try:
            command(**options)
        except (ValueError, TypeError, TacitError, OSError) as error:
            if options.get("debug"):
                raise
            complain(describe(error))
            raise typer.Exit(FAILED if isinstance(error, RunError) or is_disk_full(error) else BAD_INPUT) from None
        except KeyboardInterrupt:
            complain("interrupted before the first result; nothing was saved.")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def describe(error: BaseException) -> str:
    """Return the message for ``error``: the cause and the way out."""
    if is_disk_full(error):
        where = getattr(error, "filename", None) or getattr(error.__cause__, "filename", None)
        return f"the disk is full{f' ({where})' if where else ''}; free some space, or choose --out on another disk."
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename else str(error)
    if isinstance(error, TypeError):
        return f"{error} (--debug shows where)"
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error`` is due to a full disk."""
    chain = (error, error.__cause__)
    return any(isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT) for e in chain)


def complain(message: str) -> None:
    """Print ``message`` as an error."""
    errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
