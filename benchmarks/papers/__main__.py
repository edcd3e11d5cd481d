"""Measure what the papers claim, one script after another: ``python -m benchmarks.papers --data /path/to/data
[--quick]``.

Each script also runs alone, with more options; see its first lines.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED = ("common", "drawing", "replicas")  # what the scripts import

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    scripts = [path for path in sorted(here.glob("[!_]*.py")) if path.stem not in SHARED]
    failed = [path.name for path in scripts if subprocess.run([sys.executable, path, *sys.argv[1:]]).returncode]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)
