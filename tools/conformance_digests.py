"""Write or check the digests of the conformance table: one short simulated run for each row of tests/strategy_table.py.

    python tools/conformance_digests.py             # write tests/conformance_digests.json
    python tools/conformance_digests.py --check     # compare, and print the rows that differ

``trace`` is the digest of a run's trace, ``parameters`` the SHA-256 of the bytes of its final parameters, and
``history`` that of its evaluations, rounded to nine digits: the last bits of a loss depend on the processor, for which
MKL chooses its code. The network is unlimited, so that parameters do not depend on the sizes of messages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from strategy_table import TABLE, Row  # type: ignore[import-not-found] # noqa: E402 - a module of the tests

import tacit  # noqa: E402
from tacit import workloads  # noqa: E402

FILE = TESTS / "conformance_digests.json"
STEPS = 23
WORKERS = 5


def digests_of(row: Row) -> dict[str, str]:
    """Return the digests of trace, evaluations and final parameters of a short run of the row's strategy."""
    cluster = tacit.Cluster(workers=WORKERS, latency_s=1e-4, bandwidth_bytes_per_s=float("inf"))
    workload = workloads.quadratic(dimension=7, heterogeneity=0.5)
    run = tacit.simulate(workload, row.strategy, cluster=cluster, steps=STEPS, seed=2)
    parameters = run.parameters.detach().cpu().contiguous().numpy().tobytes()
    history = [{key: rounded(value) for key, value in row.items()} for row in run.history]
    return {
        "trace": run.trace.digest,
        "history": hashlib.sha256(json.dumps(history, sort_keys=True).encode()).hexdigest(),
        "parameters": hashlib.sha256(parameters).hexdigest(),
    }


def rounded(value: object) -> object:
    """Return a number with a fraction rounded to nine digits, anything else as it is."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def table() -> dict[str, dict[str, str]]:
    """Return the digests of all rows, by the name of the strategy."""
    return {str(row): digests_of(row) for row in TABLE}


def differences(found: dict[str, dict[str, str]], known: dict[str, dict[str, str]]) -> list[str]:
    """Return a line for each row that differs, is new, or is gone."""
    lines = [f"{name}: has no row any more" for name in known if name not in found]
    for name, row in found.items():
        wrong = [key for key in row if row[key] != known.get(name, {}).get(key)]
        if wrong:
            lines.append(f"{name}: {' and '.join(wrong)} differ" if name in known else f"{name}: is new")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    parser.add_argument("--file", type=Path, default=FILE, help="the file to write or to compare with")
    options = parser.parse_args()
    found = table()
    if not options.check:
        options.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    lines = differences(found, json.loads(options.file.read_text()))
    print("\n".join(lines) or f"{len(found)} rows are equal")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
