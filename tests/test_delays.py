"""Compute times: their means, and what a file of measured ones may look like."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.cluster.delays import Delay
from tacit.registry import parse

DELAYS = (
    tacit.Constant(mean_s=0.02),
    tacit.Exponential(mean_s=0.02),
    tacit.ShiftedExponential(shift_s=0.01, tail_mean_s=0.02),
    tacit.Pareto(minimum_s=0.01, shape=3.5),
    tacit.LogNormal(median_s=0.02, sigma=0.5),
    tacit.HyperExponential(means_s=(0.01, 0.1), weights=(0.9, 0.1)),
    tacit.Recorded(times_s=[0.1, 0.2, 0.6]),
)


@pytest.mark.parametrize("delay", DELAYS, ids=str)
def test_the_mean_of_many_draws_is_the_expected_time(delay: Delay):
    drawn = delay.draw(np.random.default_rng(0), 200_000)
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(delay.expected_s, rel=0.02)


@pytest.mark.parametrize("delay", DELAYS, ids=str)
def test_as_many_draws_survive_as_said(delay: Delay):
    drawn = delay.draw(np.random.default_rng(0), 100_000)
    times_s = np.array([-1.0, 0.005, 0.0101, 0.015, 0.0201, 0.05, 0.15, 0.3, 1.0])
    assert delay.survival(times_s) == pytest.approx([(drawn > time_s).mean() for time_s in times_s], abs=0.01)


@pytest.mark.parametrize("delay", DELAYS[1:-1], ids=str)
def test_quantiles_of_tails_undo_survival(delay: Delay):
    """Also far out, where 1 − P(X ≤ t) would have lost every digit."""
    shares = np.array([0.999, 0.5, 1e-3, 1e-30, 1e-100])
    assert delay.survival(delay.tail_quantile(shares)) == pytest.approx(shares, rel=1e-9, abs=0)


def test_quantiles_of_steps_are_the_first_times_exceeded_that_seldom():
    recorded = tacit.Recorded(times_s=[0.6, 0.1, 0.2, 0.2])
    assert recorded.tail_quantile(np.array([0.99, 0.75, 0.5, 0.25, 0.24, 0.0])).tolist() == [
        0.1,
        0.1,
        0.2,
        0.2,
        0.6,
        0.6,
    ]
    assert tacit.Constant(mean_s=0.3).tail_quantile(np.array([0.9, 0.1])).tolist() == [0.3, 0.3]
    assert tacit.LogNormal(median_s=0.3, sigma=0).survival(np.array([0.2, 0.4])).tolist() == [1.0, 0.0]


def test_spells_have_no_distribution_of_one_step():
    for ask in (tacit.SlowSpells().survival, tacit.SlowSpells().tail_quantile):
        with pytest.raises(ValueError, match="steps that depend on each other, so .* simulate instead"):
            ask(np.array([0.5]))


def test_shapes_of_the_distributions():
    random = np.random.default_rng(1)
    pareto = tacit.Pareto(minimum_s=0.01, shape=2.5).draw(random, 100_000)
    assert pareto.min() >= 0.01 and (pareto > 0.02).mean() == pytest.approx(0.5**2.5, rel=0.05)
    shifted = tacit.ShiftedExponential(shift_s=0.5, tail_mean_s=0.1).draw(random, 1000)
    assert shifted.min() >= 0.5
    assert np.median(tacit.LogNormal(median_s=0.3, sigma=1.0).draw(random, 100_000)) == pytest.approx(0.3, rel=0.02)
    assert tacit.Pareto(minimum_s=1.0, shape=0.9).expected_s == math.inf


def test_recorded_times_come_from_a_file(tmp_path: Path):
    plain, packed = tmp_path / "times.txt", tmp_path / "times.txt.gz"
    plain.write_text("# seconds\n0.1\n\n0.3  # a slow one\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        assert set(tacit.Recorded(times_s=str(path)).draw(np.random.default_rng(0), 50)) == {0.1, 0.3}


def test_a_file_of_times_is_named_or_read(tmp_path: Path):
    path = tmp_path / "times.txt"
    path.write_text("0.1\n0.3\n")
    named, read = tacit.Recorded(times_s=path), tacit.Recorded.of_file(path)  # type: ignore[arg-type]
    assert str(named) == f'Recorded(times_s="{path}")' and str(read) == "Recorded(times_s=[0.1, 0.3])"
    assert named.expected_s == read.expected_s == pytest.approx(0.2)
    with pytest.raises(tacit.BadData, match="cannot be read"):
        tacit.Recorded.of_file(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0.1\nabc\n", "line 2: 'abc' is not a number"),
        ("0.1\n-1\n", "line 2: -1 is not a positive"),
        ("\n", "contains no step times"),
    ],
)
def test_broken_files_of_times_name_the_line(tmp_path: Path, content: str, message: str):
    path = tmp_path / "times.txt"
    path.write_text(content)
    with pytest.raises(tacit.BadData, match=message):
        tacit.Recorded(times_s=str(path)).draw(np.random.default_rng(0), 1)


def test_a_missing_file_of_times_is_told(tmp_path: Path):
    with pytest.raises(tacit.BadData, match="cannot be read: No such file"):
        tacit.Recorded(times_s=str(tmp_path / "none.txt")).draw(np.random.default_rng(0), 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tacit.Constant(mean_s=0), "mean_s=0 must be positive and finite"),
        (lambda: tacit.Exponential(mean_s=math.nan), "mean_s=nan must be positive"),
        (lambda: tacit.HyperExponential(means_s=(1.0,), weights=(0.5, 0.5)), "give one weight per mean"),
        (lambda: tacit.HyperExponential(means_s=(1.0, 2.0), weights=(0.5, 0.6)), "add up to 1"),
        (lambda: tacit.Recorded(times_s=[]), "times_s is empty"),
        (lambda: tacit.SlowSpells(compute=tacit.SlowSpells()), "compute is itself a SlowSpells"),
    ],
)
def test_delays_check_themselves(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_spell_is_the_old_name_of_slow_spells():
    with pytest.warns(DeprecationWarning, match=r"tacit\.Spell is deprecated .* use tacit\.SlowSpells"):
        assert tacit.Spell is tacit.SlowSpells
    with pytest.warns(DeprecationWarning, match="use SlowSpells"):
        spells = parse("Spell(factor=2.0)", "delays")
    assert str(spells) == "SlowSpells(factor=2.0)"


def test_loss_remains_a_second_name_of_message_loss():
    """pytest turns warnings into errors, so this also shows that neither name warns."""
    assert tacit.Loss is tacit.MessageLoss
    assert str(parse("Loss(probability=0.1)", "faults")) == "MessageLoss(probability=0.1)"
