"""Probes of places: ``tacit probe`` as a user starts it on every host, its duration, and the profile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.fidelity.recording import hosts_of
from benchmarks.peers import ROOT, Failed
from benchmarks.plan.places import Place
from tests.runtime import namespaces

TIMEOUT_S: Final = 150.0
_SCRIPT: Final = Path(__file__).with_name("sleeping.py")
_PRIORITY: Final = ("chrt", "-r", "20")


def profile_of(place: Place, root: Path) -> tacit.Profile:
    """Return the profile of a place; probe it if no earlier run has."""
    probed(place, root)
    return tacit.Profile.load(_folder(place, root) / "profile")


def probed(place: Place, root: Path) -> dict[str, Any]:
    """Return what is known about the probe of a place; make it if no earlier run has."""
    folder = _folder(place, root)
    if not is_probed(place, root):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        about = _probe(place, folder)
        print(
            f"  {place}: probed in {about['seconds']:.1f} s, {about['without_import_s']:.1f} without imports",
            flush=True,
        )
        (folder / "about.json").write_text(json.dumps(about) + "\n")
    found: dict[str, Any] = json.loads((folder / "about.json").read_text())
    return found


def is_probed(place: Place, root: Path) -> bool:
    return (_folder(place, root) / "about.json").is_file()


def _folder(place: Place, root: Path) -> Path:
    return root / "probes" / place.folder


def _probe(place: Place, folder: Path) -> dict[str, Any]:
    """Run the command on all hosts; the ranks have real-time priority if the place is not quick."""
    sleeps = [str(place.sleep_of(rank)) for rank in range(place.hosts)]
    words = [
        sys.executable,
        "-m",
        "tacit",
        "probe",
        str(_SCRIPT),
        "--quiet",
        "--out",
        str((folder / "profile").resolve()),
    ]
    words = [*(() if place.is_quick else _PRIORITY), *words, "--", place.model, *sleeps]
    with hosts_of(place) as hosts, tempfile.TemporaryDirectory() as times, (folder / "log").open("w") as log:
        begun_s = time.time()
        ranks = [
            subprocess.Popen(
                host.command(*words), cwd=ROOT, env=_environment(rank, hosts, times), stdout=log, stderr=log, text=True
            )
            for rank, host in enumerate(hosts)
        ]
        try:
            codes = [rank.wait(max(1.0, begun_s + TIMEOUT_S - time.time())) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        ended_s = time.time()
        if any(codes):
            raise Failed(f"{place}: the probe failed: {(folder / 'log').read_text()[-800:]}")
        script_s = min(float(Path(times, str(rank)).read_text()) for rank in range(place.hosts))
    return {
        "place": str(place),
        "seconds": ended_s - begun_s,
        "without_import_s": ended_s - script_s,
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def _environment(rank: int, hosts: list[namespaces.Host], times: str) -> dict[str, str]:
    is_loopback = hosts[0].address == "127.0.0.1"
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_WORLD_SIZE": str(len(hosts) if is_loopback else 1),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if is_loopback else namespaces.INTERFACE,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "PROBE_TIMES": times,
    }
