"""Bounds of SwarmSGD (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308).

n nodes on an r-regular graph, λ₂ of its Laplacian. In each interaction a uniformly drawn edge's two nodes take H local
steps of size η each and then both hold the mean of their two models. μ_t: mean of all models after t interactions. Γ_t
= Σ ‖X_i − μ_t‖². f = (1/n) Σ f_i, each f_i L-smooth; every stochastic gradient has E‖g̃‖² ≤ M². All models start equal.
h₂ = E[H_i²], and s = E[(H_i − 1) H_i (2H_i − 1)]/(6H).

    derived here    E Γ_t ≤ n (4 r/λ₂ + 16 r²/λ₂²) η² h₂ M²
                    (1/T) Σ_t E‖∇f(μ_t)‖² ≤ n (f(μ_0) − f*)/(η H T) + 2 L η h₂ M²/(n H) + 2 L² η² M² ((4 r/λ₂ + 16
                    r²/λ₂²) h₂ + s)
    the paper's     (1/T) Σ_t E‖∇f(μ_t)‖² ≤ 4 (f(μ_0) − f*)/(√T H) + 2304 H² max(1, L²) M² (r²/λ₂² + 1)/√T
                    for η = n/√T, T ≥ n⁴ and geometric H_i of mean H

The derived bounds hold for any η and for fixed H (h₂ = H², s = (H − 1)(2H − 1)/6) or geometric H_i (h₂ = 2H² − H, s =
2H² − 3H + 1); docs/concepts/theory.md has the derivation. Form and conditions of the paper's bound are the paper's; its
constants 4 and 2304 are from memory. It is implied by the derived one. All three are about the blocking form, without
compression, with one interaction at a time.
"""

from __future__ import annotations

import math

from tacit.errors import require
from tacit.theory.checks import check_not_negative, check_positive, check_whole
from tacit.theory.graphs import GraphTheory


def swarm_step_size(*, interactions: int, size: int) -> float:
    """Return the paper's η = n/√T for T ``interactions`` of ``size`` = n nodes, which needs T ≥ n⁴."""
    check_whole("interactions", interactions)
    require(isinstance(size, int) and size >= 2, f"size={size} must be a whole number, at least 2.")
    require(
        interactions >= size**4,
        f"interactions={interactions} must be at least size⁴ = {size**4}, the condition of the theorem; "
        f"for fewer choose a step_size and use swarm_gradient_bound.",
    )
    return size / math.sqrt(interactions)


def swarm_consensus_bound(
    *, graph: GraphTheory, local_steps: float, step_size: float, second_moment: float, geometric: bool = False
) -> float:
    """Return the derived bound on E Γ = E Σ ‖X_i − μ‖² after any number of interactions.

    It is n (4 r/λ₂ + 16 r²/λ₂²) η² h₂ M². graph: such as ``GraphTheory(Ring(), 16)``; undirected and regular.
    local_steps: H. second_moment: M². geometric: whether each node draws its number of steps from the geometric
    distribution with mean H, as with ``tacit.Geometric``.
    """
    return graph.size * _spread(graph, local_steps, step_size, second_moment, geometric)


def swarm_gradient_bound(
    *,
    interactions: int,
    graph: GraphTheory,
    local_steps: float,
    step_size: float,
    gap: float,
    smoothness: float,
    second_moment: float,
    geometric: bool = False,
) -> float:
    """Return the derived bound on the mean of E‖∇f(μ_t)‖² over t = 0 … T−1.

    interactions: T. gap: f(μ_0) − f*. smoothness: L of every f_i. Others as in ``swarm_consensus_bound``.
    """
    check_whole("interactions", interactions)
    check_not_negative("gap", gap, "f(μ_0) − f*")
    check_positive("smoothness", smoothness)
    spread = _spread(graph, local_steps, step_size, second_moment, geometric)
    square, within = _moments(local_steps, geometric)
    progress = graph.size * gap / (step_size * local_steps * interactions)
    noise = 2 * smoothness * step_size * square * second_moment / (graph.size * local_steps)
    return progress + noise + 2 * smoothness**2 * (spread + step_size**2 * second_moment * within)


def swarm_paper_bound(
    *, interactions: int, graph: GraphTheory, local_steps: float, gap: float, smoothness: float, second_moment: float
) -> float:
    """Return the paper's bound on the mean of E‖∇f(μ_t)‖², for η = ``swarm_step_size`` and geometric local steps.

    Arguments as in ``swarm_gradient_bound``.
    """
    _check_graph(graph)
    swarm_step_size(interactions=interactions, size=graph.size)
    _check_local_steps(local_steps, geometric=True)
    check_not_negative("gap", gap, "f(μ_0) − f*")
    check_positive("smoothness", smoothness)
    check_not_negative("second_moment", second_moment, "a mean of squares")
    drift = 2304 * local_steps**2 * max(1.0, smoothness**2) * second_moment * (graph.swarm_factor + 1)
    return (4 * gap / local_steps + drift) / math.sqrt(interactions)


def _spread(graph: GraphTheory, local_steps: float, step_size: float, second_moment: float, geometric: bool) -> float:
    """Return the bound on E Γ/n."""
    _check_graph(graph)
    _check_local_steps(local_steps, geometric)
    check_positive("step_size", step_size)
    check_not_negative("second_moment", second_moment, "a mean of squares")
    square, _ = _moments(local_steps, geometric)
    factor = 4 * math.sqrt(graph.swarm_factor) + 16 * graph.swarm_factor
    return factor * step_size**2 * square * second_moment


def _moments(local_steps: float, geometric: bool) -> tuple[float, float]:
    """Return h₂ and s."""
    if geometric:
        return 2 * local_steps**2 - local_steps, 2 * local_steps**2 - 3 * local_steps + 1
    return local_steps**2, (local_steps - 1) * (2 * local_steps - 1) / 6


def _check_local_steps(local_steps: float, geometric: bool) -> None:
    require(
        1 <= local_steps < math.inf and (geometric or local_steps == int(local_steps)),
        f"local_steps={local_steps:g} must be at least 1, and a whole number unless geometric=True makes it a mean.",
    )


def _check_graph(graph: GraphTheory) -> None:
    require(isinstance(graph, GraphTheory), f"graph={graph!r} must be a GraphTheory, such as GraphTheory(Ring(), 16).")
    require(
        graph.is_regular and not graph.topology.is_directed,
        f"graph={graph.topology}: the bounds need an undirected graph whose nodes all have the same degree; "
        f"use Ring() or Complete().",
    )
