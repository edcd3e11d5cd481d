"""The command line: ``tacit compare | simulate | plan | train | watch | report | list``."""

from tacit.cli.app import app, main

__all__ = ["app", "main"]
