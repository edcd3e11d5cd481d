"""What a run was made with, for its record: model, optimizer, cores, hosts, memory, quantiles of step times."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tacit.record.trace import COMPUTE, Trace

Facts = dict[str, Any]
QUANTILES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""The quantiles of step times that a record has: from the shortest to the longest step."""
_DIGITS: Final = 4


def model_facts(parameters: int, dtype: torch.dtype, size_bytes: int) -> Facts:
    """Return the size of a model: its trainable parameters, their bytes, and the dtype in which they are sent."""
    return {"parameters": parameters, "parameter_bytes": size_bytes, "dtype": str(dtype).removeprefix("torch.")}


def optimizer_text(optimizers: Iterable[torch.optim.Optimizer]) -> str:
    """Return optimizers as text, each with the numbers of its first group: ``SGD(lr=0.1, momentum=0.9)``."""
    return ", ".join(
        f"{type(one).__name__}({', '.join(f'{n}={v!r}' for n, v in one.defaults.items() if _is_set(v))})"
        for one in optimizers
    )


def _is_set(value: object) -> bool:
    return isinstance(value, float | int | tuple) and value is not False and value != 0


def process_facts(device: torch.device) -> Facts:
    """Return the cores and the memory that this process may use, and its largest memory so far, also on its GPU."""
    facts: Facts = {"cores": _cores(), "memory_bytes": _memory_bytes(), "peak_memory_bytes": peak_memory_bytes()}
    if device.type == "cuda":
        facts["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated(device)
    return facts


def merged_facts(by_rank: Mapping[int, Facts]) -> Facts:
    """Return the facts of all processes: mean ``batch``, ``backend``, the ranks of each host, and tables by rank."""
    merged: Facts = {}
    hosts: dict[str, list[int]] = {}
    for rank, facts in by_rank.items():
        for name, value in facts.items():
            if name == "machine":
                hosts.setdefault(value, []).append(rank)
            else:
                merged.setdefault(name, {})[str(rank)] = value
    if hosts:
        merged["hosts"] = list(hosts.values())
    if "batch" in merged:
        merged["batch"] = sum(merged["batch"].values()) / len(merged["batch"])
    if "backend" in merged:
        merged["backend"] = next(iter(merged["backend"].values()))
    return merged


def step_time_quantiles(trace: Trace, quantiles: Sequence[float] = QUANTILES) -> Facts:
    """Return the quantiles of the times of steps, in seconds by rank."""
    ranks, ends_s, starts_s = trace.unordered(("rank", "time_s", "start_s"), COMPUTE)
    found: Facts = {"quantiles": list(quantiles)}
    for rank in np.unique(ranks[ranks >= 0]).tolist():
        times_s = (ends_s - starts_s)[ranks == rank]
        found[str(rank)] = [float(f"{value:.{_DIGITS}g}") for value in np.quantile(times_s, quantiles)]
    return found


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    """Return the memory of this machine, or of the control group if it has less."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not available on every system
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return found
    return min(found, int(limit)) if limit.isdigit() else found


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Return the largest resident memory of this process so far; None if the system does not tell.

    status: the file that has it on Linux. ``ru_maxrss`` begins with the memory of the process that started this one.
    """
    if status.exists():
        found = (line.split() for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return next((1024 * int(kilobytes) for _, kilobytes, _ in found), None)
    try:
        import resource  # not available on every system
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
