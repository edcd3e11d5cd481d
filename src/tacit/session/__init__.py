"""A strategy in a user's own training loop, in either world: the session, and what it asks of the stage it plays on."""

from tacit.session.agreement import common_table
from tacit.session.backend import SessionBackend, current, put, rank, shared, size
from tacit.session.options import SessionOptions
from tacit.session.session import Session, refuse_second

__all__ = [
    "Session",
    "SessionBackend",
    "SessionOptions",
    "common_table",
    "current",
    "put",
    "rank",
    "refuse_second",
    "shared",
    "size",
]
