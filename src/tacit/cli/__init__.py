"""The command line: ``tacit compare | simulate | train | report | list``."""

from tacit.cli.app import app, main

__all__ = ["app", "main"]
