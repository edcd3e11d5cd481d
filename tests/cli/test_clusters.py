"""Clusters on the command line and in TOML files: hosts, NICs and collectives, written and read back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tacit import Cluster, Run
from tacit.cli.settings import read_cluster
from tacit.registry.tables import cluster_of
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


@pytest.mark.parametrize("as_table", [False, True])
def test_a_file_gives_delays_by_rank_and_cores(tacit: Command, as_table: bool) -> None:
    texts = ["Constant(mean_s=0.01)", "Recorded(times_s=[0.25, 0.5])"]
    described = f'{{ "0" = "{texts[0]}", "1" = "{texts[1]}" }}' if as_table else str(texts)
    Path("mine.toml").write_text(f"workers = 2\ncompute = {described}\ncores = 1\ncommunication_cores = 0.5\n")
    assert tacit("simulate", *SHORT, "--cluster", "mine.toml", "--out", "a").exit_code == 0
    run = Run.load("a")
    assert run.config["cluster"]["compute"] == (dict(zip("01", texts, strict=True)) if as_table else texts)
    assert run.record["compute_slowdown"] == {"0": 1.5, "1": 1.5}
    assert tacit("simulate", "--config", "a/run.toml", "--quiet", "--out", "b").exit_code == 0
    assert Run.load("b").digest == run.digest
    assert tacit("simulate", "--config", "a/run.toml", "--workers", "3", "--out", "c").exit_code == 2


def test_long_lists_of_several_ranks_have_a_file_each(tacit: Command) -> None:
    lists = [MANY, MANY, [2 * time_s for time_s in MANY]]
    compute = [f"Recorded(times_s={times})" for times in lists]
    Path("mine.toml").write_text(f"workers = 3\ncompute = {compute}\n")
    assert tacit("simulate", *SHORT, "--cluster", "mine.toml", "--out", "a").exit_code == 0
    assert len(list(Path("a").glob("step-times-*.txt"))) == 2  # equal lists share one
    assert Run.load("a").config["cluster"]["compute"] == compute


MANY = [round(0.01 + 0.0001 * number, 6) for number in range(40)]
FEW = MANY[:32]


def test_long_lists_of_step_times_are_kept_in_files_of_the_folder(tacit: Command) -> None:
    for name, times in (("many", MANY), ("few", FEW)):
        given = ("--workers", "2", "--compute", f"Recorded(times_s={times})", "--out", name)
        assert tacit("simulate", *SHORT, *given).exit_code == 0
    saved = Path("many/run.toml").read_text()
    [times_file] = Path("many").glob("step-times-*.txt")
    assert (
        f'Recorded(times_s="{times_file.name}")' in saved and "0.0139" not in saved + Path("many/run.json").read_text()
    )
    assert [float(line) for line in times_file.read_text().splitlines()[1:]] == MANY
    assert not list(Path("few").glob("step-times-*")) and "0.0131" in Path("few/run.toml").read_text()
    run = Run.load("many")
    assert run.config["cluster"]["compute"] == f"Recorded(times_s={MANY})" and str(MANY) in run.cluster

    assert tacit("simulate", "--config", "many/run.toml", "--quiet", "--out", "again").exit_code == 0
    assert Run.load("again").digest == run.digest and (Path("again") / times_file.name).exists()
    given = (*SHORT, "--cluster", "many/run.toml", "--out", "many")
    assert tacit("simulate", *given).exit_code == 2 and tacit("simulate", *given, "--force").exit_code == 0


def test_a_comparison_keeps_long_lists_in_files_too(tacit: Command) -> None:
    given = ("--workers", "2", "--compute", f"Recorded(times_s={MANY})", "--workload", "quadratic(dimension=3)")
    options = ("compare", "-s", "AllReduce", "--steps", "2", "--quiet")
    assert tacit(*options, *given, "--out", "a").exit_code == 0
    assert "0.0139" not in Path("a/compare.toml").read_text()
    assert len(list(Path("a").glob("step-times-*.txt"))) == 1
    assert tacit("compare", "--config", "a/compare.toml", "--quiet", "--out", "b").exit_code == 0
    assert tacit("compare", "--resume", "a", "--quiet").exit_code == 0
    [first], [second] = (list(Path(folder).glob("runs/*")) for folder in "ab")
    assert Run.load(first).digest == Run.load(second).digest


def test_a_list_whose_file_is_gone_is_told(tacit: Command) -> None:
    given = ("--workers", "2", "--compute", f"Recorded(times_s={MANY})", "--out", "a")
    assert tacit("simulate", *SHORT, *given).exit_code == 0
    [times_file] = Path("a").glob("step-times-*.txt")
    times_file.unlink()
    answer = tacit("simulate", "--config", "a/run.toml", "--quiet", "--out", "b")
    assert answer.exit_code != 0 and f"{times_file.name} cannot be read" in answer.errors


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
