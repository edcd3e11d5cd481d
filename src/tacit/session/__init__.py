"""A strategy in a user's own training loop, in either world: the session, and its interface to the backend."""

from tacit.session.agreement import common_table
from tacit.session.attaching import check_not_attached
from tacit.session.backend import SessionBackend
from tacit.session.options import SessionOptions
from tacit.session.script_context import load_once, rank, script_context, set_script_context, size
from tacit.session.session import Session

__all__ = [
    "Session",
    "SessionBackend",
    "SessionOptions",
    "check_not_attached",
    "common_table",
    "load_once",
    "rank",
    "script_context",
    "set_script_context",
    "size",
]
