"""Error bounds of the server family and of LUPA: they hold on quadratics, whose errors are known exactly, and reduce to
one another.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as draw

import tacit
from tacit import theory, workloads

QUADRATIC = theory.Objective(gap=2.0, smoothness=4.0, convexity=0.5, variance=3.0)
SERVER = {"objective": QUADRATIC, "step_size": 0.05, "batch_size": 2}
EXPONENTIAL = tacit.Exponential(mean_s=1.0)


def exact_errors(curvature: float, step_sizes: np.ndarray, averaged: int) -> np.ndarray:
    """Return E[F(w_j)] of SGD on F = curvature/2 · w² with F(w_0) = gap, its gradients the mean of ``averaged`` samples
    of QUADRATIC's variance.
    """
    square, errors = 2 * QUADRATIC.gap / curvature, [QUADRATIC.gap]
    for step_size in step_sizes:
        square = (1 - step_size * curvature) ** 2 * square + step_size**2 * QUADRATIC.variance / averaged
        errors.append(curvature / 2 * square)
    return np.array(errors)


class StaleQuadratic:
    """E[w_i w_j] of the last iterates on F = curvature/2 · w², exact, for updates that average K gradients of drawn
    staleness.

    Each gradient is independently fresh with probability ``fresh`` and else ``staleness`` updates old. A batch of m at
    w has variance (σ² + M_G ‖∇F(w)‖²)/m.
    """

    def __init__(self, objective: theory.Objective, curvature: float, staleness: int, fresh: float) -> None:
        self.objective, self.curvature, self.staleness, self.fresh = objective, curvature, staleness, fresh
        self.moments = np.full((staleness + 1, staleness + 1), 2 * objective.gap / curvature)  # [0]: the newest iterate

    @property
    def error(self) -> float:
        return self.curvature / 2 * float(self.moments[0, 0])

    @property
    def gamma(self) -> float:
        """E‖∇F(w_j) − ∇F(w_stale)‖² / E‖∇F(w_j)‖² at this update."""
        newest, cross, oldest = self.moments[0, 0], self.moments[0, -1], self.moments[-1, -1]
        return float((1 - self.fresh) * (newest - 2 * cross + oldest) / newest)

    def update(self, step_size: float, k: int, batch_size: int) -> None:
        pull, moments = step_size * self.curvature, self.moments
        weights = np.zeros(len(moments))  # of w_j, …, w_stale in the mean gradient
        weights[0] += self.fresh
        weights[-1] += 1 - self.fresh
        square = float(weights @ np.diag(moments))  # E w_τ² of one gradient
        mean_square = square / k + (1 - 1 / k) * float(weights @ moments @ weights)
        noise = self.objective.variance + self.objective.variance_growth * self.curvature**2 * square
        cross = moments[0] - pull * (weights @ moments)
        newest = moments[0, 0] - 2 * pull * float(weights @ moments[0]) + pull**2 * mean_square
        size = len(moments)
        grown = np.empty((size + 1, size + 1))
        grown[1:, 1:], grown[0, 1:], grown[1:, 0] = moments, cross, cross
        grown[0, 0] = newest + step_size**2 * noise / (k * batch_size)
        self.moments = grown[:size, :size]


def objectives() -> draw.SearchStrategy[theory.Objective]:
    return draw.builds(
        theory.Objective,
        gap=draw.just(2.0),
        smoothness=draw.just(4.0),
        convexity=draw.just(0.5),
        variance=draw.sampled_from([0.0, 3.0]),
        variance_growth=draw.sampled_from([0.0, 2.0, 20.0]),
    )


@settings(deadline=None)
@given(
    objectives(),
    draw.floats(0.5, 4.0),
    draw.integers(1, 16),
    draw.integers(1, 4),
    draw.floats(0.01, 1.0),
    draw.sampled_from(["sync", "k-sync", "k-batch-sync", "k-async", "k-batch-async"]),
    draw.integers(0, 4),
    draw.floats(0.0, 1.0),
)
def test_no_quadratic_violates_the_bounds_of_any_kind(
    objective: theory.Objective,
    curvature: float,
    k: int,
    batch_size: int,
    share: float,
    kind: str,
    staleness: int,
    fresh: float,
):
    """Steps up to the largest that is allowed; γ and p₀ are those of the very run.

    Staleness 0 is K-async with K = P, which is K-sync.
    """
    is_stale = kind.endswith("async")
    staleness, fresh = (staleness, fresh if staleness else 1.0) if is_stale else (0, 1.0)
    step_size = share * theory.largest_step_size(kind, k=k, objective=objective, batch_size=batch_size)
    run = StaleQuadratic(objective, curvature, staleness, fresh)
    errors, gamma = [run.error], 0.0
    for _ in range(200):
        gamma = max(gamma, run.gamma)
        run.update(step_size, k, batch_size)
        errors.append(run.error)
    assume(gamma <= 1 and (gamma < 0.99 or fresh > 0.05))  # else the theorem says nothing
    options = {"k": k, "objective": objective, "step_size": step_size, "batch_size": batch_size}
    options |= {"gamma": gamma, "p0": fresh} if is_stale else {}
    assert np.all(np.array(errors) <= theory.error_bound(kind, updates=np.arange(201), **options) * (1 + 1e-9))
    mean_squares = 2 * curvature * np.cumsum(errors[:-1]) / np.arange(1, 201)  # ‖∇F‖² = 2 λ F
    assert np.all(mean_squares <= theory.gradient_bound(kind, updates=np.arange(1, 201), **options) * (1 + 1e-9))


def test_k_async_of_all_workers_stays_below_its_bound_at_the_largest_step():
    """K = P is K-sync, and gradient descent diverges beyond η = 2/L whatever K."""
    workload = workloads.quadratic(dimension=20, condition=10.0, noise=0.0)
    cluster = tacit.Cluster(workers=8, compute=EXPONENTIAL)
    smooth = theory.Objective(gap=1.0, smoothness=1.0, convexity=0.1, variance=0.0)
    step_size = theory.largest_step_size("k-async", k=8, objective=smooth, batch_size=1)
    run = tacit.simulate(workload, tacit.KAsync(k=8), cluster=cluster, steps=11, lr=step_size)
    losses = [row["loss"] for row in run.history]
    problem = theory.Objective(gap=losses[0], smoothness=1.0, convexity=0.1, variance=0.0)
    bound = theory.error_bound(
        "k-async", updates=11, k=8, objective=problem, step_size=step_size, batch_size=1, gamma=0.0, p0=1.0
    )
    assert 0 < losses[-1] <= bound < losses[0]


@given(draw.floats(0.5, 4.0), draw.integers(1, 50), draw.integers(1, 16), draw.integers(0, 400))
def test_no_quadratic_violates_lupas_bound(curvature: float, period: int, workers: int, steps: int):
    """On a quadratic the average of all workers moves as if they averaged in every step."""
    offset = theory.lupa_offset(objective=QUADRATIC, period=period)
    sizes = theory.lupa_step_size(step=np.arange(steps), objective=QUADRATIC, offset=offset)
    error = exact_errors(curvature, sizes, workers * 2)[-1]
    bound = theory.lupa_bound(steps=steps, period=period, workers=workers, batch_size=2, objective=QUADRATIC)
    assert error <= bound * (1 + 1e-9)


def test_bounds_begin_at_the_gap_and_end_at_the_floor():
    for kind, extra in (("k-sync", {}), ("k-batch-async", {"gamma": 0.5, "p0": 0.25})):
        pull = 1.0 if kind == "k-sync" else 0.625
        first, last = theory.error_bound(kind, updates=[0, 1e5], k=4, **SERVER, **extra)
        assert first == QUADRATIC.gap
        assert last == pytest.approx(0.05 * 4 * 3 / (2 * 0.5 * pull * 4 * 2))


def test_the_floor_falls_with_gradients_per_update_and_with_the_batch():
    """§4.7(3): proportional to η/(K m)."""

    def floor(k: int, batch_size: int, step_size: float) -> float:
        options = {"objective": QUADRATIC, "step_size": step_size, "batch_size": batch_size}
        return float(theory.error_bound("k-sync", updates=1e6, k=k, **options))

    assert floor(4, 2, 0.05) == pytest.approx(floor(1, 1, 0.05) / 8) == pytest.approx(floor(8, 2, 0.1))


@given(draw.floats(0, 1e4))
def test_without_staleness_the_stale_bound_is_the_sync_one(updates: float):
    fresh = theory.error_bound("k-sync", updates=updates, k=4, **SERVER)
    assert theory.error_bound("k-async", updates=updates, k=4, gamma=0.0, p0=0.0, **SERVER) == pytest.approx(fresh)
    count = updates + 1
    fresh = theory.gradient_bound("k-sync", updates=count, k=4, **SERVER)
    assert theory.gradient_bound("k-batch-async", updates=count, k=4, gamma=0.0, **SERVER) == pytest.approx(fresh)


@given(draw.floats(0, 0.9), draw.floats(0, 0.9), draw.floats(0, 1), draw.floats(0, 1))
def test_staler_is_worse_and_fresher_better(gamma: float, other: float, p0: float, other_p0: float):
    def bound(gamma: float, p0: float) -> float:
        return float(theory.error_bound("async", updates=100, k=1, gamma=gamma, p0=p0, **SERVER))

    assert bound(max(gamma, other), min(p0, other_p0)) >= bound(min(gamma, other), max(p0, other_p0)) * (1 - 1e-12)


def test_step_size_limits_of_the_paper():
    noisy = theory.Objective(gap=1.0, smoothness=4.0, variance=1.0, convexity=1.0, variance_growth=6.0)
    for kind in ("k-sync", "k-batch-sync", "k-async", "k-batch-async"):
        assert theory.largest_step_size(kind, k=3, objective=noisy, batch_size=2) == pytest.approx(1 / (8 * (1 + 1)))


def test_async_is_better_early_and_sync_late():
    """§4.7(4), the error-runtime crossover, drawn without running anything."""
    times_s = np.linspace(0, 2000, 400)
    options = {"times_s": times_s, "workers": 8, "compute": EXPONENTIAL, **SERVER}
    late, early = theory.error_curve("sync", **options), theory.error_curve("async", gamma=0.3, **options)
    assert early[0] == late[0] == QUADRATIC.gap
    assert np.all(early[1:10] < late[1:10]) and np.all(late[-10:] < early[-10:])


def test_a_curve_is_the_bound_at_the_updates_of_its_time():
    options = {"workers": 8, "compute": EXPONENTIAL, **SERVER}
    curve = theory.error_curve("k-async", times_s=[0.0, 12.0], k=4, gamma=0.4, **options)
    seconds = theory.update_time("k-async", k=4, workers=8, compute=EXPONENTIAL)
    bound = theory.error_bound("k-async", updates=[0.0, 12.0 / seconds], k=4, gamma=0.4, p0=0.5, **SERVER)
    assert curve == pytest.approx(bound)


@pytest.mark.parametrize(("k", "speed"), [(2, None), (4, {3: 0.2})])
def test_a_curve_without_closed_form_uses_the_simulated_time(k: int, speed: dict[int, float] | None):
    shifted = tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=1.0)
    cluster = {"workers": 32, "compute": shifted, "k": k, "speed": speed}
    seconds = theory.update_time("k-async", method="simulated", **cluster)
    curve = theory.error_curve("k-async", times_s=[0.0, 9.0], gamma=0.4, **cluster, **SERVER)
    bound = theory.error_bound("k-async", updates=[0.0, 9.0 / seconds], k=k, gamma=0.4, p0=0.0, **SERVER)
    assert curve == pytest.approx(bound)
    bounds = theory.update_time_bounds("k-async", **cluster)
    slowest = theory.error_bound("k-async", updates=9.0 / bounds.upper_s, k=k, gamma=0.4, **SERVER)
    assert curve[1] < 0.8 * slowest  # the upper bound would draw the curve several times too slow


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("k-sync", {"step_size": 0.2}, "step_size=0.2 must not be above 0.125, the limit of the theorem"),
        ("k-sync", {"step_size": 0.0}, "step_size=0 must be positive"),
        ("k-async", {"step_size": 0.2, "gamma": 0.0}, "step_size=0.2 must not be above 0.125"),
        ("k-sync", {"gamma": 0.5}, "gamma=0.5 belongs to the stale kinds; 'k-sync' has no stale gradients"),
        ("k-async", {}, "gamma=None: kind='k-async' needs the γ"),
        ("k-async", {"gamma": 1.5}, "gamma=1.5 must be between 0 and 1"),
        ("k-async", {"gamma": 0.5, "p0": -0.1}, "p0=-0.1 must be between 0 and 1"),
        ("k-async", {"gamma": 1.0}, "gamma=1 with p0=0 gives no bound"),
        ("async", {"gamma": 0.5}, "k=4 with kind='async' must be 1"),
        ("k-sync", {"updates": [3, -1]}, "updates=-1 must not be negative"),
        ("k-sync", {"batch_size": 0}, "batch_size=0 must be a whole number"),
        (
            "k-sync",
            {"objective": theory.Objective(gap=1.0, smoothness=1.0, variance=1.0)},
            "convexity=None: this bound needs strong convexity",
        ),
    ],
)
def test_arguments_out_of_range_explain_themselves(kind: str, arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        theory.error_bound(kind, **{"updates": 10, "k": 4, **SERVER, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gap": -1.0}, "gap=-1 must be finite and not negative"),
        ({"smoothness": 0.0}, "smoothness=0 must be positive"),
        ({"variance": math.nan}, "variance=nan must be finite and not negative"),
        ({"convexity": 2.0}, "convexity=2 must not be above smoothness=1"),
    ],
)
def test_objectives_check_themselves(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        theory.Objective(**{"gap": 1.0, "smoothness": 1.0, "variance": 1.0, **arguments})


LUPA = {"workers": 4, "batch_size": 32, "objective": QUADRATIC}
GROWING = theory.Objective(gap=2.0, smoothness=4.0, convexity=0.5, variance=3.0, variance_growth=2.0)


def test_lupas_bound_is_the_papers():
    """Theorem 1 by hand: κ = 8, a = 64."""
    noise = 8 * 3.0 / (0.5 * 4 * 32)
    by_hand = (64**3 * 2.0 + 4 * noise * 1000 * 1128 + 256 * 8 * noise * 1000 * 9) / 1064**3
    assert theory.lupa_bound(steps=1000, period=10, **LUPA) == pytest.approx(by_hand)
    assert theory.lupa_bound(steps=0, period=10, **LUPA) == QUADRATIC.gap


def test_lupa_speeds_up_linearly_in_workers_and_batch():
    """The error goes to 4 κ σ²/(μ p B T) when T grows, whatever the period."""
    for workers, batch_size in ((1, 1), (4, 32)):
        steps, options = 1e9, {"workers": workers, "batch_size": batch_size, "objective": QUADRATIC}
        bound = theory.lupa_bound(steps=steps, period=91, **options)
        assert bound == pytest.approx(4 * 8 * 3 / (0.5 * workers * batch_size * steps), rel=1e-3)


def test_equal_periods_of_theorem_two_are_theorem_one_with_half_its_drift():
    equal = theory.lupa_adaptive_bound(periods=[10] * 100, **LUPA)
    without, with_drift = (float(theory.lupa_bound(steps=1000, period=tau, **LUPA)) for tau in (1, 10))
    assert equal == pytest.approx((without + with_drift) / 2)
    uneven = theory.lupa_adaptive_bound(periods=[1] * 900 + [100], offset=200.0, **LUPA)
    assert uneven > theory.lupa_adaptive_bound(periods=[10] * 100, offset=200.0, **LUPA)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.lupa_bound(steps=10, period=4, workers=4, batch_size=32, objective=GROWING),
        lambda: theory.lupa_bound(steps=10, period=4, workers=4, batch_size=32, objective=GROWING, offset=64.0),
        lambda: theory.lupa_adaptive_bound(periods=[4, 8], workers=4, batch_size=32, objective=GROWING),
        lambda: theory.lupa_curve(
            times_s=9.0, period=4, workers=4, batch_size=32, objective=GROWING, compute=EXPONENTIAL
        ),
        lambda: theory.lupa_offset(objective=GROWING, period=4),
    ],
    ids=["bound", "bound with offset", "adaptive", "curve", "offset"],
)
def test_lupa_refuses_a_variance_that_grows(call):
    with pytest.raises(
        ValueError, match=r"variance_growth=2 must be 0: .* use variance=3 \+ 2 G² and variance_growth=0"
    ):
        call()


def test_lupas_period_and_steps():
    assert theory.lupa_period(steps=5469, workers=4, batch_size=128) == math.ceil(5469 ** (2 / 3) / 512 ** (1 / 3))
    assert theory.lupa_period(steps=1000, workers=1, batch_size=1) == 100  # a whole power does not round up
    assert theory.lupa_period(steps=1000, workers=8, batch_size=1, gap=0.125) == 100
    assert theory.lupa_period(steps=10, workers=1000, batch_size=1000) == 1
    assert theory.lupa_offset(objective=QUADRATIC, period=10) == 64
    assert theory.lupa_offset(objective=QUADRATIC, period=100) == 104
    sizes = theory.lupa_step_size(step=[0, 36], objective=QUADRATIC, offset=64)
    assert sizes == pytest.approx([4 / (0.5 * 64), 4 / (0.5 * 100)])


def test_the_step_size_is_the_schedule_of_the_same_offset():
    schedule = tacit.InverseTime(offset=64)
    for step in (0, 7, 500):
        size = theory.lupa_step_size(step=step, objective=QUADRATIC, offset=64)
        assert size == pytest.approx(4 / (0.5 * 64) * schedule.factor(step, 1000))


def test_lupas_curve_buys_time_with_longer_periods():
    options = {"compute": EXPONENTIAL, "exchange_s": 5.0, "times_s": 4000.0, **LUPA}
    assert theory.lupa_curve(period=8, **options) < theory.lupa_curve(period=1, **options)
    free = {**options, "exchange_s": 0.0, "compute": tacit.Constant(mean_s=2.0)}
    assert theory.lupa_curve(period=4, **free) == pytest.approx(theory.lupa_bound(steps=2000, period=4, **LUPA))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theory.lupa_bound(steps=10, period=4, offset=10.0, **LUPA),
            r"offset=10 must be at least max\(2 L/mu, 4\) = 16",
        ),
        (lambda: theory.lupa_bound(steps=-1, period=4, **LUPA), "steps=-1 must not be negative"),
        (lambda: theory.lupa_bound(steps=1, period=0, **LUPA), "period=0 must be a whole number"),
        (lambda: theory.lupa_adaptive_bound(periods=[], **LUPA), "periods is empty"),
        (lambda: theory.lupa_adaptive_bound(periods=[4, 0], **LUPA), "periods=0 must be a whole number"),
        (lambda: theory.lupa_period(steps=0, workers=1, batch_size=1), "steps=0 must be a whole number"),
        (lambda: theory.lupa_period(steps=9, workers=1, batch_size=1, gap=0.0), "gap=0 must be positive"),
        (
            lambda: theory.lupa_curve(times_s=1.0, period=2, compute=EXPONENTIAL, exchange_s=-1, **LUPA),
            "exchange_s=-1 must be finite and not",
        ),
        (
            lambda: theory.gradient_bound("k-sync", updates=0, k=4, **SERVER),
            "updates=0: a mean over no update is undefined",
        ),
    ],
)
def test_lupa_explains_itself(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()
