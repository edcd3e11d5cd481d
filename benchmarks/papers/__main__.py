"""Measure what the papers claim, one script after another: ``python -m benchmarks.papers --data /path/to/data
[--quick]``.

Each script also runs alone, with more options; see its first lines.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED = ("common", "drawing", "horizon", "prepared", "replicas", "rows")  # what the scripts import

if __name__ == "__main__":
    found = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    commands = {name: [sys.executable, "-m", f"benchmarks.papers.{name}"] for name in found if name not in SHARED}
    failed = [name for name, line in commands.items() if subprocess.run([*line, *sys.argv[1:]]).returncode]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)
