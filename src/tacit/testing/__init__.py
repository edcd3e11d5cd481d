"""Public checks and tools for testing strategies, periods and compressors of other packages.

- ``check_strategy``, ``check_period``, ``check_compressor``: raise ``AssertionError`` where a promise is broken.
- ``ScriptedNetwork``, ``ScriptedWorker``: call a strategy's hooks with scripted answers, without a simulation.
- ``toys``: small strategies that together use every call of ``Network``.

Nothing here needs pytest; each check is one call in a test function.
"""

from tacit.testing.compressors import check_compressor
from tacit.testing.periods import check_period
from tacit.testing.scripted import Call, ScriptedNetwork, ScriptedWorker
from tacit.testing.strategies import CHECKS, Row, check_strategy

__all__ = [
    "CHECKS",
    "Call",
    "Row",
    "ScriptedNetwork",
    "ScriptedWorker",
    "check_compressor",
    "check_period",
    "check_strategy",
]
