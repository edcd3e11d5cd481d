"""Profiles: what runs on real processes tell, profiles by hand, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.cli.settings import read_cluster
from tacit.cluster.group_network import GroupNetwork
from tacit.errors import FolderExists, TacitError
from tacit.profiles.probe.reading import Reading
from tacit.profiles.probe.strategy import PEAK_MEMORY
from tacit.profiles.strategy_memory import models_of
from tests.profiles.synthetic_runs import PARAMETERS, real_run

TOP = tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21())


def step_s(cluster: tacit.Cluster, strategy: tacit.Strategy, steps: int = 10) -> float:
    """Return the mean step of a timing-only run of a model with the parameters of the synthetic runs."""
    workload = tacit.workloads.quadratic(dimension=PARAMETERS)
    run = tacit.simulate(workload, strategy, cluster=cluster, steps=steps, timing_only=True)
    return run.summary()["time_s"] / steps


def test_step_times_are_computation_and_update_without_the_first_steps() -> None:
    profile = tacit.Profile.of(real_run([1.0, 1.0, 4.0]))
    assert [delay.expected_s for delay in profile.compute] == pytest.approx([1.05, 1.05, 4.05])
    assert (profile.workers, profile.cancel, profile.server) == (3, "step_end", "rank0")


def test_costs_are_seconds_per_number() -> None:
    profile = tacit.Profile.of(real_run([1.0, 1.0]), real_run([1.0, 1.0], gather_s=0.3))
    assert profile.costs == pytest.approx(
        {
            "flatten": 0.02 / PARAMETERS,
            "divide": 0.01 / PARAMETERS,
            "encode TopK": 0.2 / PARAMETERS,
            "decode TopK": 0.1 / (2 * PARAMETERS),
            "update": 0.05 / PARAMETERS,
        },
        rel=1e-3,
    )


@pytest.mark.parametrize("hosts", [None, [[0, 1]], [[0], [1]]])
def test_a_simulation_on_the_measured_cluster_has_the_measured_step(hosts: list[list[int]] | None) -> None:
    profile = tacit.Profile.of(real_run([1.0, 1.0], hosts=hosts))
    assert step_s(profile.cluster(), tacit.AllReduce()) == pytest.approx(1.05 + 0.02 + 0.5 + 0.01, rel=1e-3)


def test_four_workers_and_two_kinds_of_rounds() -> None:
    slow = [1.0, 1.0, 1.0, 3.0]
    profile = tacit.Profile.of(real_run(slow), real_run(slow, gather_s=0.3))
    assert step_s(profile.cluster(), tacit.AllReduce()) == pytest.approx(3.05 + 0.02 + 0.5 + 0.01, rel=1e-3)
    assert step_s(profile.cluster(), TOP) == pytest.approx(3.05 + 0.02 + 0.2 + 0.3 + 0.1, rel=0.02)
    assert step_s(profile.cluster(), tacit.LocalSGD(period=tacit.Every(5))) == pytest.approx(3.05 + 0.53 / 5, rel=1e-3)


@pytest.mark.parametrize(("step_times_s", "round_s"), [([2.0, 1.0], 0.75), ([1.0, 2.0], 0.5)])
def test_a_round_lasts_until_the_rank_that_is_last_again_has_the_result(
    step_times_s: list[float], round_s: float
) -> None:
    """Rank 0 has the result 0.25 s late, which delays the run only if the others wait for rank 0 in the next round."""
    profile = tacit.Profile.of(real_run(step_times_s, late_s=0.25))
    assert step_s(profile.cluster(), tacit.AllReduce()) == pytest.approx(2.05 + 0.02 + round_s + 0.01, rel=0.005)


def test_ranks_that_do_not_differ_clearly_share_their_times() -> None:
    runs = [real_run([1.0, 1.0, 3.0], jitter=0.5, seed=seed) for seed in range(3)]
    first, second, slow = tacit.Profile.of(*runs).compute
    assert first == second != slow
    assert first.expected_s == pytest.approx(1.05, rel=0.15) and slow.expected_s == pytest.approx(3.05, rel=0.15)


def test_what_compression_adds_to_a_step_is_a_cost_of_encoding() -> None:
    dense, compressed = real_run([1.0, 1.0]), real_run([1.5, 1.5], gather_s=0.3)
    profile = tacit.Profile.of(dense, compressed)
    assert [delay.expected_s for delay in profile.compute] == pytest.approx([1.05, 1.05])
    assert profile.costs["encode TopK"] == pytest.approx((0.2 + 0.5) / PARAMETERS, rel=1e-3)
    alone = tacit.Profile.of(compressed)
    assert [delay.expected_s for delay in alone.compute] == pytest.approx([1.55, 1.55])


def test_what_a_wait_adds_to_a_step_is_part_of_the_round() -> None:
    """Steps of AllReduce follow a long round; those of the compressed run follow a short one."""
    profile = tacit.Profile.of(real_run([1.5, 1.5]), real_run([1.0, 1.0], gather_s=0.3))
    assert [delay.expected_s for delay in profile.compute] == pytest.approx([1.05, 1.05])
    assert step_s(profile.cluster(), tacit.AllReduce()) == pytest.approx(1.55 + 0.02 + 0.5 + 0.01, rel=0.005)
    assert profile.costs["encode TopK"] == pytest.approx(0.2 / PARAMETERS, rel=1e-3)


def test_of_the_work_before_a_round_that_of_the_last_rank_counts() -> None:
    run = real_run([1.0, 3.0])
    rows = [
        (e, r, k, s - 1.0 * (k == "hook" and label == "flatten" and r == 0), *rest, label)
        for e, r, k, s, *rest, label in run.trace.rows
    ]
    run.trace.rows = rows  # rank 0, which waits, takes a second longer to flatten
    assert tacit.Profile.of(run).costs["flatten"] == pytest.approx(0.02 / PARAMETERS, rel=1e-3)


def test_fewer_workers_on_a_measured_network_send_less() -> None:
    profile = tacit.Profile.of(real_run([1.0] * 4))
    three = profile.cluster(workers=3, compute=profile.compute[:3])
    assert 1.08 < step_s(three, tacit.AllReduce()) < step_s(profile.cluster(), tacit.AllReduce())


def test_a_run_without_rounds_keeps_the_network_of_its_settings() -> None:
    run = real_run([1.0, 1.0])
    run.trace.rows = [row for row in run.trace.rows if row[2] not in ("exchange", "wait")]
    run.config = {"cluster": {"latency_s": 0.25, "bandwidth_bytes_per_s": 1e4}}
    profile = tacit.Profile.of(run)
    assert (profile.latency_s, profile.bandwidth_bytes_per_s, profile.collectives) == (0.25, 1e4, "ring")


def test_rounds_of_other_libraries_are_a_table() -> None:
    profile = tacit.Profile.of(real_run([1.0, 1.0], backend="nccl"))
    assert profile.collectives == tacit.Measured({8008: 0.5})
    assert any("nccl" in sentence for sentence in profile.warnings)


def test_what_makes_predictions_uncertain_is_in_the_warnings() -> None:
    assert tacit.Profile.of(real_run([1.0, 1.0])).warnings == ()
    shared = real_run([1e-3, 1e-3, 1e-3], hosts=[[0, 1, 2]], cores={"0": 2, "1": 2, "2": 2})
    assert any("Ranks 0, 1, 2 share 2 cores" in sentence for sentence in tacit.Profile.of(shared).warnings)
    unsteady = real_run([1.0, 1.0], rounds=20)
    late = [
        (e + (e - s) * (k == "compute" and n > 10), r, k, s, n, *rest) for e, r, k, s, n, *rest in unsteady.trace.rows
    ]
    unsteady.trace.rows = late
    assert any("Steps changed by +" in sentence for sentence in tacit.Profile.of(unsteady).warnings)


def test_runs_that_do_not_fit_together_are_refused() -> None:
    simulated = tacit.simulate(tacit.workloads.quadratic(dimension=3), tacit.AllReduce(), steps=3)
    with pytest.raises(ValueError, match="was not on real processes, so it has no measured step times"):
        tacit.Profile.of(simulated)
    with pytest.raises(ValueError, match="the runs have workers 2, 3; give runs of one model on the same workers"):
        tacit.Profile.of(real_run([1.0, 1.0]), real_run([1.0] * 3))
    with pytest.raises(ValueError, match=r"give at least one run on real processes: Profile\.of\(run\)"):
        tacit.Profile.of()
    partial = real_run([1.0, 1.0])
    partial.workers = 3
    with pytest.raises(ValueError, match="steps of 2 of 3 workers; give a complete run"):
        tacit.Profile.of(partial)


def test_a_profile_by_hand_and_its_cluster() -> None:
    profile = tacit.Profile(workers=4, compute=tacit.Constant(mean_s=0.03), speed={3: 1 / 3}, latency_s=2e-4)
    cluster = profile.cluster(bandwidth_bytes_per_s=12.5e6, server="extra")
    assert type(cluster) is tacit.Cluster
    assert (cluster.latency_s, cluster.bandwidth_bytes_per_s, cluster.server) == (2e-4, 12.5e6, "extra")
    with pytest.raises(ValueError, match="speed"):
        tacit.Profile(workers=2, speed={5: 1.0})


def test_memory_of_strategies_is_not_part_of_a_profile() -> None:
    record = {"parameter_bytes": 1_000_000, "parameters": 250_000}
    dense = real_run([1.0, 2.0], peak_memory_bytes={"0": 20_000_000, "1": 19_000_000}, **record)
    dense.strategy = "LocalSGD(period=Every(8))"
    sparse = real_run([1.0, 2.0], peak_memory_bytes={"0": 40_000_000, "1": 18_000_000}, **record)
    sparse.strategy = "a strategy of my own"
    own = models_of(tacit.LocalSGD(period=tacit.Every(8))) * 1e6
    assert tacit.Profile.of(dense).peak_memory_bytes == {0: 20_000_000 - own, 1: 19_000_000 - own}
    assert tacit.Profile.of(sparse).peak_memory_bytes == {0: 40_000_000, 1: 18_000_000}
    assert tacit.Profile.of(dense, sparse).peak_memory_bytes == {0: 20_000_000 - own, 1: 18_000_000}


def test_a_probe_takes_the_memory_before_it_runs_strategies() -> None:
    run = real_run([1.0, 2.0])
    notes = {0: {PEAK_MEMORY: 5e8}, 1: {PEAK_MEMORY: 6e8}}
    assert Reading(run, {}, notes).peak_memory_bytes() == {0: 500_000_000, 1: 600_000_000}
    assert Reading(run, {}, {0: notes[0]}).peak_memory_bytes() == {}


def test_a_profile_is_saved_and_read_again(tmp_path: Path) -> None:
    profile = tacit.Profile.of(
        real_run([1.0, 2.0], rounds=60, hosts=[[0], [1]], batch=32, peak_memory_bytes={"0": 10, "1": 20})
    )
    folder = profile.save(tmp_path / "profile")
    assert tacit.Profile.load(folder) == profile
    assert tacit.Profile.load(folder / "profile.toml") == profile
    assert len((folder / "profile.toml").read_text().splitlines()) < 50, "one screen: step times are in files"
    assert read_cluster(folder) == profile.cluster().table()
    with pytest.raises(FolderExists, match="overwrite=True"):
        profile.save(folder)
    assert profile.save(folder, overwrite=True) == folder


def test_a_folder_of_a_real_run_is_a_profile(tmp_path: Path) -> None:
    run = real_run([1.0, 2.0])
    run.save(tmp_path / "run")
    assert tacit.Profile.load(tmp_path / "run") == tacit.Profile.of(run) == tacit.Profile.of(tmp_path / "run")


def test_files_that_are_no_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=r"there is no profile\.toml"):
        tacit.Profile.load(tmp_path)
    file = tmp_path / "hand.toml"
    for text, message in {
        "[cluster]\nlatency_s = 0.1\n": "workers is missing; write workers = 4",
        "[cluster]\nworker = 4\n": "unknown key 'worker'",
        '[cluster]\nworkers = 4\n[job]\nparameters = "many"\n': "parameters='many' must be a whole number",
        "speed = 3\n": "unknown key 'speed'",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            tacit.Profile.load(file)
    file.write_text('[cluster]\nworkers = 2\ncompute = "Constant(mean_s=0.5)"\n')
    assert tacit.Profile.load(file) == tacit.Profile(workers=2, compute=tacit.Constant(mean_s=0.5))


def test_factors_are_interpolated_by_size() -> None:
    network = GroupNetwork(tacit.Cluster(workers=4), range(4))
    calibrated = tacit.Calibrated(all_reduce={1_000: 1.0, 1_000_000: 3.0}, all_gather={500: 2.0})
    for size_bytes, factor in {10: 1.0, 31_623: 2.0, 5_000_000: 3.0}.items():
        plain_s = tacit.Gloo().all_reduce_s(size_bytes, network)
        assert calibrated.all_reduce_s(size_bytes, network) == pytest.approx(factor * plain_s, rel=1e-4)
    sizes = np.full(4, 700.0)
    assert calibrated.all_gather_s(sizes, network) == 2 * tacit.Gloo().all_gather_s(sizes, network)
    assert calibrated.broadcast_s(700, 0, network) == tacit.Gloo().broadcast_s(700, 0, network)
    with pytest.raises(ValueError, match="must map bytes to a factor on gloo's time"):
        tacit.Calibrated(all_reduce={1000: 0})
