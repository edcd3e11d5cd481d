"""Clusters on the command line and in TOML files: hosts, NICs and collectives, written and read back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tacit import Cluster, Run
from tacit.cli.settings import cluster_of, read_cluster
from tests.cli.command_line import Command

SHORT = ("--timing-only", "--steps", "3", "--quiet")
FILE = """
[cluster]
workers = 3
hosts = [0, 0, 1]
host_latency_s = 0.001
host_bandwidth_bytes_per_s = 1e9
header_overhead = 0.047
nics = { "2" = "Nic(out_bytes_per_s=500.0)" }
collectives = "Measured({1000: 0.001, 1000000: 0.5})"
"""


def test_hosts_and_collectives_are_options(tacit: Command) -> None:
    given = ("--workers", "4", "--hosts", "2", "--collectives", "gloo")
    answer = tacit("simulate", *SHORT, *given, "--out", "a")
    assert answer.exit_code == 0, answer.errors
    saved = tomllib.loads(Path("a/run.toml").read_text())["cluster"]
    assert (saved["hosts"], saved["collectives"]) == (2, "gloo")
    assert tacit("simulate", "--config", "a/run.toml", "--quiet", "--out", "b").exit_code == 0
    assert (
        tacit("simulate", *SHORT, *given[:2], "--hosts", "0,0,1,1", "--collectives", "Gloo", "--out", "c").exit_code
        == 0
    )
    assert tacit("simulate", *SHORT, *given[:2], "--out", "d").exit_code == 0
    first, again, listed, plain = (Run.load(folder) for folder in "abcd")
    assert first.digest == again.digest == listed.digest != plain.digest
    assert not {"hosts", "collectives", "nics", "header_overhead"} & set(plain.config["cluster"])


def test_a_file_describes_hosts_nics_and_measured_times(tacit: Command) -> None:
    Path("mine.toml").write_text(FILE)
    cluster = cluster_of(read_cluster(Path("mine.toml")))
    assert cluster_of(cluster.table()) == cluster
    assert {**Cluster(workers=3).table(), **tomllib.loads(FILE)["cluster"]} == cluster.table()
    assert tacit("simulate", *SHORT, "--cluster", "mine.toml", "--out", "a").exit_code == 0
    assert Run.load("a").config["cluster"] == cluster.table()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--hosts", "two"), "hosts='two' must be a number of hosts (2) or each rank's host (0,0,1,1)."),
        (("--hosts", "0,1"), "hosts has 2 entries, but workers=3; give the host of each rank."),
        (("--collectives", "nccl"), 'collectives="nccl" must be "ring" or "gloo", Gloo(…)'),
        (("--collectives", "Link()"), "collectives=Link()"),
        (("--collectives", "Measured({})"), "all_reduce={} must map bytes to seconds"),
    ],
)
def test_what_is_wrong_is_answered(tacit: Command, given: tuple[str, ...], message: str) -> None:
    answer = tacit("simulate", *SHORT, "--workers", "3", *given)
    assert answer.exit_code == 2
    assert message in answer.errors
