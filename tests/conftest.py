"""One torch thread: runs are small, and the digest of a run is promised for equal thread counts.

Drawn examples have no deadline.
"""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with tests of real processes and of the command line: they wait much, and would be what is left over at the
    end.
    """
    first = ("runtime", "scripts", "cli", "test_examples.py", "test_documentation.py", "test_benchmarks.py")
    items.sort(key=lambda item: not any(name in item.path.parts for name in first))
