"""Feedback: what the papers prove of EF21 and its relatives, and what a run must not get wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit import workloads
from tacit.compression import QSGD, Compressor, Dense, DenseVector, RandomK, Sign, TopK
from tacit.compression.feedback import Feedback, FeedbackState
from tests.strategies.ranks import Ranks

Gradient = Callable[[Tensor], Tensor]
ALL = [
    tacit.NoFeedback(),
    tacit.ErrorFeedback(),
    tacit.ErrorFeedback(decay=0.9),
    tacit.EF21(),
    tacit.EF21(init="full"),
    tacit.EF21Plus(),
    tacit.EF21Momentum(eta=0.3),
    tacit.EF21HeavyBall(eta=0.5),
    tacit.EF21Partial(probability=0.5),
    tacit.EF21Weighted(weights=[1.0, 2.0, 3.0]),
    tacit.EF21Bidirectional(master=TopK(k=1)),
]
each = pytest.mark.parametrize("feedback", ALL, ids=str)


@dataclass(frozen=True)
class Mask(Compressor):
    """Keeps some coordinates, always the same ones: deterministic, homogeneous and additive."""

    kept: tuple[int, ...]

    def compress(self, x, random, memory=None, shapes=()):
        mask = torch.zeros_like(x)
        mask[list(self.kept)] = 1
        return DenseVector(x * mask)

    def contraction(self, dimension):
        return 1.0  # on the coordinates that it keeps


@dataclass(frozen=True)
class Largest(Compressor):
    """Top-k without its wire format, for long runs: their laws are about the feedback."""

    k: int

    def compress(self, x, random, memory=None, shapes=()):
        places = x.abs().topk(self.k).indices
        return DenseVector(torch.zeros_like(x).index_copy_(0, places, x[places]))

    def contraction(self, dimension):
        return self.k / dimension


def descend(
    feedback: Feedback,
    compressor: Compressor,
    gradients: Sequence[Gradient],
    start: Sequence[float],
    rate: float,
    steps: int,
) -> Tensor:
    """Return x⁰ … x^T."""
    ranks = Ranks(feedback, compressor, len(gradients), len(start))
    x = torch.tensor(start, dtype=torch.float64)
    path = [x]
    for _ in range(steps):
        x = x - rate * ranks.mean([gradient(x) for gradient in gradients], rate=rate)
        path.append(x)
    return torch.stack(path)


def quadratics(*pairs: tuple[Sequence[float], Sequence[float]]) -> list[Gradient]:
    """Gradients of ½ (x − b)ᵀ diag(a) (x − b)."""
    tensors = [(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)) for a, b in pairs]
    return [lambda x, a=a, b=b: a * (x - b) for a, b in tensors]


# The papers.


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, a: Tensor) -> Tensor:
        return self.x - a


@pytest.mark.parametrize("init", ["compressed", "full"])
def test_the_hand_example(init: str):
    """§3.6(5): f₁ = ½‖x − (4,0)‖², f₂ = ½‖x − (0,3)‖², Top-1, γ = 0.1, in the simulator."""
    data = (torch.tensor([[4.0, 0.0], [0.0, 3.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    workload = workloads.custom(
        Point(), lambda gap, _: 0.5 * gap.square().sum(-1).mean(), data=data, batch_size=None, split="contiguous"
    )
    strategy = tacit.CompressedGradient(compressor=TopK(k=1), feedback=tacit.EF21(init=init))
    for steps, expected in ((1, (0.20, 0.15)), (2, (0.38, 0.30)), (3, (0.56, 0.42))):
        run = tacit.simulate(workload, strategy, cluster=tacit.Cluster(workers=2), steps=steps, lr=0.1)
        assert run.parameters.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("compressor", [Mask((0, 2)), Dense()], ids=str)
def test_ef_equals_ef21_for_an_additive_compressor(compressor: Compressor):
    """§3.6(6), with the compressed start."""
    functions = quadratics(([1, 5, 0.2], [4, 0, 1]), ([3, 1, 2], [0, 3, -2]), ([2, 2, 9], [1, 1, 1]))
    ef = descend(tacit.ErrorFeedback(), compressor, functions, [1, -2, 3], 0.05, 200)
    ef21 = descend(tacit.EF21(), compressor, functions, [1, -2, 3], 0.05, 200)
    torch.testing.assert_close(ef, ef21, rtol=0, atol=1e-14)
    assert (ef[-1] - ef[0]).abs().max() > 1


@pytest.mark.slow
def test_dcgd_diverges_where_ef21_converges():
    """The example of Beznosikov et al. (arXiv 2002.12410): f_i = ⟨a_i, x⟩² + ¼‖x‖², Top-1 from (1,1,1); DCGD grows for
    every γ.
    """
    directions = [torch.tensor(a, dtype=torch.float64) for a in ((-3, 2, 2), (2, -3, 2), (2, 2, -3))]
    functions = [lambda x, a=a: 2 * (a @ x) * a + x / 2 for a in directions]
    rate = 1 / 200
    dcgd = descend(tacit.NoFeedback(), Largest(1), functions, [1, 1, 1], rate, 2000)
    ef21 = descend(tacit.EF21(), Largest(1), functions, [1, 1, 1], rate, 3000)
    assert dcgd[-1].norm() > 1e6
    assert ef21[-1].norm() < 1e-6


@pytest.mark.slow
def test_only_ef21_settles_where_minima_conflict():
    """§3.6(5): at a fixed step DCGD stalls, EF oscillates, EF21 and EF21+ converge to x*."""
    functions = quadratics(([1, 1, 1], [4, 0, -1]), ([3, 1, 0.5], [0, 3, 2]), ([1, 2, 1], [-2, 1, 5]))
    mean = sum(f(torch.zeros(3, dtype=torch.float64)) for f in functions)
    curvature = sum(f(torch.ones(3, dtype=torch.float64)) for f in functions) - mean
    optimum = -mean / curvature

    def worst(feedback: Feedback) -> float:
        """The largest distance from x* in the last hundred steps."""
        path = descend(feedback, Largest(1), functions, [0, 0, 0], 0.1, 1200)
        return float((path[-100:] - optimum).norm(dim=1).max())

    assert worst(tacit.NoFeedback()) > 0.1
    assert worst(tacit.ErrorFeedback()) > 0.01
    assert worst(tacit.EF21()) < 1e-12
    assert worst(tacit.EF21Plus()) < 1e-12


def test_with_one_worker_ef_and_ef21_tie_when_both_are_tuned():
    """§3.6(8): the gap comes from n > 1; alone, the best rates of both agree."""
    draws = np.random.default_rng(1)
    axes = np.linalg.qr(draws.standard_normal((10, 10)))[0]
    curvature = torch.from_numpy(
        axes @ np.diag(np.geomspace(0.05, 1.0, 10)) @ axes.T
    )  # aligned axes would flatter both
    optimum = torch.from_numpy(draws.standard_normal(10))
    functions = [lambda x: curvature @ (x - optimum)]

    def best_rate(feedback: Feedback) -> float:
        """The least factor per step, in the mean over 150 of them, over a grid of step sizes."""
        found = []
        for rate in np.geomspace(0.05, 2.0, 12):
            path = descend(feedback, Largest(3), functions, [0.0] * 10, float(rate), 150)
            norms = [float(functions[0](x).norm()) for x in (path[0], path[-1])]
            found.append((norms[1] / norms[0]) ** (1 / 150) if np.isfinite(norms[1]) else np.inf)
        return min(found)

    ef, ef21 = best_rate(tacit.ErrorFeedback()), best_rate(tacit.EF21())
    assert ef < 0.97 and ef21 < 0.97
    assert np.log(ef) / np.log(ef21) == pytest.approx(1.0, abs=0.15)


@pytest.mark.paper
def test_momentum_goes_below_the_floor_of_ef21_with_small_batches():
    """§3.6(7): EF21-SGD with a constant batch stalls at a floor that follows σ²; EF21-SGDM with the same batch goes
    lower.
    """

    def floor(feedback: Feedback, sigma: float) -> float:
        draws = torch.Generator().manual_seed(0)
        exact = quadratics(([1] * 10, [4] + [0] * 9), ([2] * 10, [0] * 9 + [3]), ([1] * 10, [-1] * 10))
        noisy = [lambda x, f=f: f(x) + sigma * torch.randn(10, generator=draws, dtype=torch.float64) for f in exact]
        path = descend(feedback, Largest(1), noisy, [0.0] * 10, 0.02, 1800)[900:]
        return float(torch.stack([sum(f(x) for f in exact) / 3 for x in path]).square().sum(1).mean())

    plain, louder, momentum = (
        floor(tacit.EF21(), 0.3),
        floor(tacit.EF21(), 0.6),
        floor(tacit.EF21Momentum(eta=0.1), 0.3),
    )
    assert momentum < 0.5 * plain
    assert louder == pytest.approx(4 * plain, rel=0.5)


def test_error_feedback_pays_in_the_models_units_whatever_the_rate():
    """x⁰ − x^T + mean e_i = Σ γ_t mean ∇f_i: nothing is lost, also where γ changes; a rate of zero moves nothing."""
    ranks, draws = Ranks(tacit.ErrorFeedback(), TopK(k=1), 2, 5), torch.Generator().manual_seed(0)
    moved, wanted = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for rate in (0.5, 0.5, 0.0, 0.1, 0.02, 0.3):
        vectors = list(torch.randn(2, 5, generator=draws, dtype=torch.float64))
        moved += rate * ranks.mean(vectors, rate=rate)
        wanted += rate * (vectors[0] + vectors[1]) / 2
        owed = sum(state.own["error"] for state in ranks.states) / 2
        torch.testing.assert_close(moved + owed, wanted, rtol=0, atol=1e-14)
    assert float(owed.norm()) > 0.1


def test_a_rank_that_leaves_pays_what_it_owes():
    """All that was said and all that is owed add up to Σ γ w_i ∇f_i, also when a rank's data has ended; where nobody
    steps nothing is lost.
    """
    ranks, draws = Ranks(tacit.ErrorFeedback(), TopK(k=2), 3, 5), torch.Generator().manual_seed(0)
    said, wanted = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for weights in ([1.0, 1.0, 2.0], [1.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0] * 3, [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]):
        vectors = [weight * torch.randn(5, generator=draws, dtype=torch.float64) for weight in weights]
        owed_before = ranks.states[2].own["error"].clone()
        mean = ranks.mean(vectors, weights, rate=0.5)
        said += 0.5 * mean * sum(weights)
        wanted += 0.5 * sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
        owed = sum(state.own["error"] for state in ranks.states)
        torch.testing.assert_close(said + owed, wanted, rtol=0, atol=1e-14)
        if not any(weights):
            assert not mean.any() and torch.equal(ranks.states[2].own["error"], owed_before)
    assert not ranks.states[2].own["error"].any()


def test_ef21_plus_takes_the_gradient_itself_where_that_is_nearer():
    """From an estimate of (10,10,10) one coordinate of the change says little of (0,0,1), and one of the gradient
    everything.
    """
    vectors = [
        torch.tensor([10.0, 10.0, 10.0], dtype=torch.float64),
        torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64),
    ]
    plus, plain = (
        Ranks(feedback, TopK(k=1), 1, 3) for feedback in (tacit.EF21Plus(init="full"), tacit.EF21(init="full"))
    )
    for ranks, expected in ((plus, [0.0, 0.0, 1.0]), (plain, [0.0, 10.0, 10.0])):
        assert ranks.mean(vectors[:1]).tolist() == [10.0, 10.0, 10.0]
        assert ranks.mean(vectors[1:]).tolist() == expected
        near = torch.tensor(expected, dtype=torch.float64) + torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
        assert ranks.mean([near]).tolist() == near.tolist()  # from a good estimate the change is nearer


def test_heavy_ball_is_ef21_with_the_optimizers_momentum():
    settings = {"cluster": tacit.Cluster(workers=3), "steps": 40, "lr": 0.05}
    workload = workloads.quadratic(dimension=6, heterogeneity=1.0)
    ball = tacit.CompressedGradient(compressor=TopK(k=1), feedback=tacit.EF21HeavyBall(eta=0.8))
    plain = tacit.CompressedGradient(compressor=TopK(k=1), feedback=tacit.EF21())
    with_ball = tacit.simulate(workload, ball, **settings)
    with_momentum = tacit.simulate(workload, plain, momentum=0.8, **settings)
    torch.testing.assert_close(with_ball.parameters, with_momentum.parameters, rtol=0, atol=1e-12)


def test_partial_participation_says_less_and_still_converges():
    functions = quadratics(([1, 1, 1], [4, 0, -1]), ([3, 1, 0.5], [0, 3, 2]))
    path = descend(tacit.EF21Partial(probability=0.3), Largest(1), functions, [0, 0, 0], 0.05, 2500)
    assert float(sum(f(path[-1]) for f in functions).norm()) < 1e-9
    workload, cluster = workloads.quadratic(dimension=50), tacit.Cluster(workers=4)
    sizes = [
        tacit.simulate(
            workload, tacit.CompressedGradient(compressor=TopK(k=5), feedback=f), cluster=cluster, steps=60
        ).summary()["bytes_sent"]
        for f in (tacit.EF21Partial(probability=0.3), tacit.EF21())
    ]
    assert sizes[0] < 0.7 * sizes[1]


def test_both_directions_compressed_converges_and_tells_what_a_master_would_send():
    functions = quadratics(([1, 1, 1], [4, 0, -1]), ([3, 1, 0.5], [0, 3, 2]))
    path = descend(tacit.EF21Bidirectional(master=Largest(1)), Largest(1), functions, [0, 0, 0], 0.02, 3000)
    assert float(sum(f(path[-1]) for f in functions).norm()) < 1e-9
    strategy = tacit.CompressedGradient(compressor=TopK(k=5), feedback=tacit.EF21Bidirectional(master=TopK(k=2)))
    run = tacit.simulate(workloads.quadratic(dimension=50), strategy, cluster=tacit.Cluster(workers=3), steps=7)
    told = [e.value for e in run.trace.of("note") if e.label == "broadcast_bytes"]
    assert len(told) == 7 and 0 < max(told) < 8 * 50


def test_an_unbiased_compressor_is_scaled_until_it_contracts():
    """RandomK scaled by d/k has ω = d/k − 1; EF21 uses 1/(1+ω) of it and converges, where the bare one would blow up."""
    functions = quadratics(([1] * 8, list(range(8))), ([2] * 8, [1] * 8))
    compressor = RandomK(k=1, scaled=True)
    assert tacit.EF21().scale(compressor, 8) == pytest.approx(1 / 8)
    path = descend(tacit.EF21(), compressor, functions, [0] * 8, 0.05, 1500)
    assert float(sum(f(path[-1]) for f in functions).norm()) < 1e-9


def test_a_selection_with_two_bits_is_scaled_until_it_contracts():
    """Chain(BlockTopK, QSGD(bits=2)): E‖s C(x) − x‖² ≤ (1 − α₁/(1+ω₂)) ‖x‖²."""
    chain, x = tacit.Chain(tacit.BlockTopK(block=8, k=2), QSGD(bits=2, bucket=16)), torch.linspace(-1.0, 2.0, 64)
    scale, random = tacit.ErrorFeedback().scale(chain, 64), np.random.default_rng(0)
    omega = QSGD(bits=2, bucket=16).variance(16)
    assert chain.contraction(64) is None and scale == pytest.approx(1 / (1 + omega)) and omega >= 1
    errors = [float((scale * chain.compress(x, random).dense() - x).square().sum()) for _ in range(200)]
    assert np.mean(errors) <= (1 - 0.25 * scale) * float(x.square().sum())
    assert tacit.ErrorFeedback().scale(tacit.Chain(TopK(k=9), QSGD(bits=8)), 64) == 1.0


@pytest.mark.parametrize("size", [1, 3])
def test_a_decaying_error_is_that_of_sparse_loco(size: int):
    """e ← β e + Δ;  m = C(e);  e ← e − m (Sarfi et al., arXiv 2508.15706, with one worker's numbers by hand)."""
    ranks = Ranks(tacit.ErrorFeedback(decay=0.5), Mask((0,)), size, 2)
    for expected in (1.0, 1.5, 1.75):  # the coordinate that is never sent: 1, 0.5 + 1, 0.75 + 1
        sent = ranks.mean([torch.ones(2, dtype=torch.float64)] * size)
        torch.testing.assert_close(sent, torch.tensor([1.0, 0.0], dtype=torch.float64))
        assert [float(state.own["error"][1]) for state in ranks.states] == pytest.approx([expected] * size)


# Weights.


@pytest.mark.parametrize(
    "feedback", [f for f in ALL if "Bidirectional" not in str(f) and "Ball" not in str(f)], ids=str
)
def test_without_loss_every_feedback_gives_the_weighted_mean(feedback: Feedback):
    if isinstance(feedback, tacit.EF21Momentum | tacit.EF21Partial):
        feedback = type(feedback)(**{"eta": 1.0} if isinstance(feedback, tacit.EF21Momentum) else {"probability": 1.0})
    ranks, weights = Ranks(feedback, Dense(), 3, 4), [0.5, 1.0, 2.5]
    for seed in range(3):
        vectors = list(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        expected = sum(w * v for w, v in zip(weights, vectors, strict=True)) / 4.0
        torch.testing.assert_close(ranks.mean(vectors, weights, rate=0.1), expected, rtol=0, atol=1e-14)


@each
def test_a_rank_whose_data_has_ended_leaves_the_mean(feedback: Feedback):
    """Its estimate must not go on steering the others; and all ranks must go on agreeing."""
    if isinstance(feedback, tacit.EF21Bidirectional):
        feedback = tacit.EF21Bidirectional(master=Dense())
    ranks, vectors = (
        Ranks(feedback, TopK(k=2), 3, 3),
        [torch.full((3,), v, dtype=torch.float64) for v in (1.0, 2.0, 900.0)],
    )
    for _ in range(3):
        ranks.mean(vectors, rate=0.1)
    for _ in range(60):
        mean = ranks.mean([*vectors[:2], torch.zeros(3, dtype=torch.float64)], [1.0, 1.0, 0.0], rate=0.1)
    if isinstance(feedback, tacit.EF21Weighted):
        assert float(mean.max()) < 3  # weights were given for three
    elif not isinstance(feedback, tacit.NoFeedback | tacit.ErrorFeedback | tacit.EF21HeavyBall):
        torch.testing.assert_close(mean, torch.full((3,), 1.5, dtype=torch.float64))
    assert float(mean.abs().max()) < 10


@each
def test_a_skipped_step_is_silent_and_remembers(feedback: Feedback):
    """2⁻⁶⁰, the weight of an overflow: nothing is said, nothing forgotten; where all skip, nothing changes anywhere."""
    ranks = Ranks(feedback, TopK(k=1), 3, 4)
    vectors = list(torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    ranks.mean(vectors, rate=0.1)
    kept = [{k: v.clone() for k, v in {**s.own, **s.shared}.items()} for s in ranks.states]
    nothing = [torch.zeros(4, dtype=torch.float64)] * 3
    ranks.mean(nothing, [2.0**-60] * 3, rate=0.1)
    for state, before in zip(ranks.states, kept, strict=True):
        assert all(torch.equal(value, before[name]) for name, value in {**state.own, **state.shared}.items())


# What must not get in.


class Edge(nn.Module):
    """A finite loss with an infinite gradient, after two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.edge = nn.Parameter(torch.ones(3)), nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.fine.sum() + self.edge.clamp(min=0).sqrt()) * x.new_ones(len(x), 1)


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.CompressedGradient(compressor=TopK(k=2)),
        tacit.CompressedGradient(compressor=Sign(), feedback=tacit.ErrorFeedback()),
    ],
    ids=str,
)
def test_an_infinite_gradient_is_told_with_its_parameter_and_never_remembered(strategy: tacit.Strategy):
    model = Edge()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = tacit.attach(model, optimizer, strategy)
    model(torch.zeros(1, 1)).sum().backward()
    optimizer.step()
    before = session.state_dict()["state"]
    optimizer.zero_grad()
    with torch.no_grad():
        model.edge.zero_()
    model(torch.zeros(1, 1)).sum().backward()
    with pytest.raises(tacit.NotFinite, match="the gradient of edge of worker 0 is (inf|nan) in step 2"):
        optimizer.step()
    after = session.state_dict()["state"]
    for table in ("own", "shared"):
        assert all(torch.equal(after[table][name], value) for name, value in before[table].items())


# Other numbers of workers.


def believed(feedback: Feedback, states: Sequence[FeedbackState]) -> Tensor:
    """What the model would follow if nobody had anything new to say; of EF14 what it would still be paid."""
    if isinstance(feedback, tacit.NoFeedback):
        return torch.zeros(())
    if isinstance(feedback, tacit.ErrorFeedback):
        return torch.stack([s.own["error"] for s in states]).sum(0) / sum(states[0].weights)
    state = states[0]
    total = state.shared["estimates"].sum(0) if "estimates" in state.shared else state.shared["sum"]
    return total / sum(state.weights)


@each
@pytest.mark.parametrize("size", [2, 3, 5])
def test_another_number_of_workers_keeps_the_mean_of_the_estimates(feedback: Feedback, size: int):
    ranks = Ranks(feedback, TopK(k=1), 3, 4)
    for seed in range(4):
        vectors = list(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        ranks.mean(vectors, [32.0, 8.0, 32.0], rate=0.1)
    merged = [feedback.merged(ranks.states, rank, size) for rank in range(size)]
    torch.testing.assert_close(believed(feedback, merged), believed(feedback, ranks.states), rtol=0, atol=1e-14)
    if "estimate" in merged[0].own:  # what ranks hold adds up to what all believe
        torch.testing.assert_close(sum(s.own["estimate"] for s in merged), merged[0].shared["sum"], rtol=0, atol=1e-12)
    assert all(s.weights == [24.0] * size and s.rank == rank for rank, s in enumerate(merged))


# Local SGD.


def local(feedback: Feedback | None = None, compressor: Compressor | None = None, **settings) -> tacit.Run:
    strategy = tacit.LocalSGD(
        period=settings.pop("period", tacit.Every(4)), compressor=compressor, feedback=feedback, **settings
    )
    workload = workloads.quadratic(dimension=20, heterogeneity=0.5, noise=0.1)
    return tacit.simulate(workload, strategy, cluster=tacit.Cluster(workers=4), steps=80, lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [tacit.NoFeedback(), tacit.ErrorFeedback(), tacit.EF21(), None], ids=str)
@pytest.mark.parametrize("outer", [None, tacit.OuterSGD(lr=0.7, momentum=0.5)], ids=str)
def test_rounds_compressed_without_loss_are_plain_rounds(feedback: Feedback | None, outer):
    plain, compressed = local(outer=outer), local(feedback, Dense(), outer=outer)
    torch.testing.assert_close(plain.parameters, compressed.parameters, rtol=0, atol=1e-12)


def test_compressed_rounds_of_few_numbers_still_learn_and_send_less():
    plain, small = local(), local(compressor=TopK(k=2))
    assert small.summary()["bytes_sent"] < plain.summary()["bytes_sent"] * 2  # twenty numbers: mostly headers
    assert small.history[-1]["loss"] < plain.history[0]["loss"] * 0.5 + plain.history[-1]["loss"]
    digits = {"cluster": tacit.Cluster(workers=4), "steps": 60, "lr": 0.2}
    runs = [
        tacit.simulate(workloads.digits(), tacit.LocalSGD(period=tacit.Every(4), compressor=c), **digits)
        for c in (None, TopK(fraction=0.05))
    ]
    assert runs[1].summary()["bytes_sent"] < 0.25 * runs[0].summary()["bytes_sent"]
    assert runs[1].history[-1]["loss"] < 0.6 * runs[1].history[0]["loss"]


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tacit.CompressedGradient(compressor="topk"), "compressor='topk' must be a compressor such as TopK"),
        (lambda: tacit.CompressedGradient(feedback=None), "feedback=None must be a feedback such as EF21"),
        (
            lambda: tacit.CompressedGradient(compressor=QSGD(), feedback=tacit.EF21Plus()),
            "EF21Plus keeps its guarantee only with a deterministic",
        ),
        (lambda: tacit.LocalSGD(feedback=tacit.EF21()), r"feedback=EF21\(\) needs a compressor; add compressor="),
        (lambda: tacit.LocalSGD(compressor=TopK(), overlap_steps=2), "overlap_steps=2 must be 0 with a compressor"),
        (lambda: tacit.ErrorFeedback(decay=0.0), "decay=0.0 must be above 0 and at most 1"),
        (lambda: tacit.EF21(init="zero"), "init='zero' must be \"compressed\""),
        (lambda: tacit.EF21Momentum(eta=0.0), "eta=0.0 must be above 0"),
        (lambda: tacit.EF21HeavyBall(eta=1.0), "eta=1.0 must be at least 0 and below 1"),
        (lambda: tacit.EF21Partial(probability=0.0), "probability=0.0 must be above 0"),
        (lambda: tacit.EF21Weighted(weights=[1.0, 0.0]), "must be positive numbers, one for each rank"),
        (lambda: tacit.EF21Bidirectional(master=3), "master=3 must be a compressor"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_for_another_number_of_workers_are_refused():
    strategy = tacit.CompressedGradient(feedback=tacit.EF21Weighted(weights=[1.0, 2.0]))
    with pytest.raises(ValueError, match="weights holds 2 numbers and there are 3 ranks"):
        tacit.simulate(workloads.quadratic(dimension=4), strategy, cluster=tacit.Cluster(workers=3), steps=2)
