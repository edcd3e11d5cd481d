"""Measurements that are kept in the benchmark's folder as JSON and not made again."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any


def kept(name: str, chosen: argparse.Namespace, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return what was measured under ``name``; measure it if nothing was, unless --no-runs or the time is over."""
    file = chosen.folder / f"{name}.json"
    if not file.is_file():
        if chosen.no_runs or time.monotonic() >= chosen.ends_s:
            return None
        load = os.getloadavg()[0]
        found = {"load": round(load, 1), "date": time.strftime("%Y-%m-%d %H:%M"), **measure()}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"  measured {name}, load {load:.1f}", flush=True)
    return dict(json.loads(file.read_text()))
