"""gloo's all-gather of two ranks takes one transfer or two; a profile says so where it matters."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tacit
from tacit.cluster.group_network import GroupNetwork
from tests.profiles.synthetic_runs import real_run

BYTES = 8000  # take as long as the all-reduce, 0.5 s, if the messages of two ranks cross


@pytest.mark.parametrize("gather_s", [0.5, 1.0])
def test_both_modes_are_named_whichever_was_measured(gather_s: float) -> None:
    profile = tacit.Profile.of(real_run([1.0, 1.0]), real_run([1.0, 1.0], gather_s=gather_s, gather_bytes=BYTES))
    (warning,) = [text for text in profile.warnings if "all-gather" in text]
    assert f"all-gather of 8 kB between two ranks took {1e3 * gather_s:.0f} ms" in warning
    found = re.search(r"rounds: (\d+) or (\d+) ms for s\.$", warning)
    assert found is not None and [float(text) for text in found.groups()] == pytest.approx([500, 1000], rel=0.05)


def test_short_gathers_and_other_clusters_get_no_warning() -> None:
    short = real_run([1.0, 1.0], gather_s=0.05, gather_bytes=400)
    three = [real_run([1.0] * 3), real_run([1.0] * 3, gather_s=0.5, gather_bytes=BYTES)]
    nccl = [real_run([1.0, 1.0], backend="nccl", gather_s=0.5, gather_bytes=BYTES)]
    for runs in ([real_run([1.0, 1.0]), short], [real_run([1.0, 1.0])], three, nccl):
        assert not any("all-gather" in text for text in tacit.Profile.of(*runs).warnings)


@pytest.mark.parametrize("gather_s", [0.5, 1.0])
def test_a_profile_expects_the_mode_that_lasts(gather_s: float) -> None:
    """Without latency that is nearly always the second: ranks that enter apart stay apart."""
    profile = tacit.Profile.of(real_run([1.0, 1.0]), real_run([1.0, 1.0], gather_s=gather_s, gather_bytes=BYTES))
    times, network = profile.cluster().collective_times, GroupNetwork(profile.cluster(latency_s=0.0), range(2))
    assert times is not None
    assert times.all_gather_s(np.full(2, BYTES), network) == pytest.approx(1.0, rel=0.05)


def test_ranks_with_random_steps_see_both_modes() -> None:
    """What was measured is then kept: the mode changes from round to round."""
    runs = [real_run([1.0, 1.0], jitter=0.9), real_run([1.0, 1.0], jitter=0.9, gather_s=0.5, gather_bytes=BYTES)]
    cluster = tacit.Profile.of(*runs).cluster()
    assert cluster.collective_times is not None
    network = GroupNetwork(cluster, range(2))
    assert cluster.collective_times.all_gather_s(np.full(2, BYTES), network) == pytest.approx(0.5, rel=0.05)
