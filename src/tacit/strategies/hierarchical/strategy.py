"""Hierarchical training: fast averaging inside groups of ranks, slow averaging across groups.

    inner    AllReduce: g ← mean of the group's gradients in every step; or compressed gradients, or local SGD
    outer    every τ steps: x̄ ← mean of the groups' models, among one leader per group, which broadcasts it inside
             with the period rules, outer optimizers and compressors of LocalSGD

Links inside a group, such as a machine or a site, are often a hundred times faster than those across. Each of G leaders
sends 2(G−1)/G models per round across groups, however many ranks a group has. The models of a group are equal before
each round across groups, so a leader stands for its group, with the sum of its weights.

    AllReduce inside, LocalSGD across    hierarchical local SGD, Lin et al., ICLR 2020, arXiv 1808.07217
    LocalSGD inside and across           H-SGD, Wang et al., AAAI 2022, arXiv 2010.12998
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, RunsAhead, Strategy, hook_free_steps, merged_state
from tacit.core.worker import Worker, is_timing_only
from tacit.errors import require
from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.compressed_gradient import CompressedGradient
from tacit.strategies.hierarchical.groups import (
    Groups,
    GroupsArgument,
    broadcast_inside,
    check_groups,
    divided,
    mean_by_groups,
)
from tacit.strategies.hierarchical.networks import GroupNetwork
from tacit.strategies.hierarchical.state import HierarchicalState, observed_by_group
from tacit.strategies.hierarchical.views import InnerView, OuterView
from tacit.strategies.local_sgd.strategy import LocalSGD

_INNER = (AllReduce, CompressedGradient, LocalSGD)


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Strategy[HierarchicalState], RunsAhead, MergesStates):
    """Average inside groups of ranks by ``inner`` and across the groups by ``outer``: hierarchical local SGD, H-SGD."""

    inner: Strategy[Any] = field(default=AllReduce(), metadata=ALWAYS_SPELLED)
    outer: LocalSGD = field(default=LocalSGD(), metadata=ALWAYS_SPELLED)
    groups: GroupsArgument = None  # a number of groups of adjacent ranks, lists of ranks, or None: one group per host

    regroups = False  # leaders and members of groups wait in different calls when a worker is lost

    def __post_init__(self) -> None:
        inner, outer = self.inner, self.outer
        kinds = ", ".join(kind.__name__ for kind in _INNER)
        require(type(inner) in _INNER, f"inner={inner!r} must be one of {kinds}, which average inside a group.")
        needs = f"outer={outer!r} must be LocalSGD(…), whose rounds average the models of groups"
        require(type(outer) is LocalSGD, f"{needs}; the other strategies train without groups.")
        whole = "must have overlap_steps=0 and fragments=1: a group takes whole models and waits for its leader."
        require(outer.overlap_steps == 0 and outer.fragments == 1, f"outer={outer!r} {whole}")
        if isinstance(inner, LocalSGD):
            is_plain = inner.outer is None and inner.compressor is None and inner.overlap_steps == 0
            rule = "rounds across groups replace the models that an outer optimizer, a compressor or a variance needs"
            is_plain = is_plain and inner.fragments == 1 and not inner.period.needs_variance
            require(is_plain, f"inner={inner!r} must average plainly, because {rule}; give these parts to outer.")
        check_groups(self.groups)

    @cached_property
    def _known_groups(self) -> dict[tuple[int, int | tuple[int, ...]], Groups]:
        return {}

    @property
    def depends_on_time(self) -> bool:
        return super().depends_on_time or self.groups is None  # then it depends on the hosts of a cluster

    def init(self, worker: Worker) -> HierarchicalState:
        groups = self._groups(worker)
        state = HierarchicalState(None, self.outer.init(cast(Worker, OuterView(worker, groups))))
        state.inner = self.inner.init(self._member(worker, state))
        return state

    def hook_free_steps(self, worker: Worker, state: HierarchicalState) -> int:
        free = self.outer.hook_free_steps(worker, state.outer)
        return min(free, hook_free_steps(self.inner, worker, state.inner))

    def before_step(self, worker: Worker, state: HierarchicalState) -> None:
        self.inner.before_step(self._member(worker, state), state.inner)

    def after_step(self, worker: Worker, state: HierarchicalState) -> None:
        self.inner.after_step(self._member(worker, state), state.inner)
        worker.report_total_weight(math.inf)  # other groups may have data
        if worker.step >= state.outer.due:
            self._average(worker, state, self.outer.after_step)

    def finish(self, worker: Worker, state: HierarchicalState) -> None:
        if worker.step > state.outer.last_round:
            self._average(worker, state, self.outer.finish)

    def reported(self, worker: Worker, state: HierarchicalState) -> Tensor | None:
        """Return the common model where a round does not end with the mean of all models."""
        groups = self._groups(worker)
        common = self.outer.reported(worker, state.outer)
        if common is None and self.outer.weights == "equal" and not groups.are_equal:
            return worker.parameters / groups.share  # groups count the same, whatever their sizes
        return common

    def merged(self, states: Sequence[HierarchicalState], rank: int, size: int) -> HierarchicalState:
        leaders = [state.outer for state in states if state.is_leader] or [state.outer for state in states]
        inner = merged_state(self.inner, [state.inner for state in states], rank, size)
        return HierarchicalState(inner, merged_state(self.outer, leaders, rank, size))

    def _average(self, worker: Worker, state: HierarchicalState, hook: Callable[[Worker, Any], None]) -> None:
        """Run a round: make the models of the group equal, let the leaders average theirs, broadcast inside."""
        groups, network, outer = self._groups(worker), worker.network, state.outer
        self.inner.finish(self._member(worker, state), state.inner)
        state.take(worker)
        own, seed = state.outer_seen.take(), int(worker.shared_random.integers(2**63))  # all ranks draw it
        view = OuterView(worker, groups, observed_by_group(worker, groups, own), seed)
        state.is_leader = worker.rank == groups.leader
        if state.is_leader:
            hook(cast(Worker, view), outer)
        model = broadcast_inside(network, groups, worker.parameters)
        numbers = model.new_tensor([outer.due, view.network.has_data], dtype=torch.float64)
        due, has_data = broadcast_inside(network, groups, numbers).tolist()
        if not state.is_leader:
            outer.due, outer.last_round = int(due), worker.step
            for copy in () if is_timing_only(worker) else (worker.parameters, outer.common):
                if copy is not None:
                    copy.copy_(model)
        weight = own.weight / max(1, own.steps)
        worker.average_extra_state(weight, partial(mean_by_groups, network, groups))
        worker.report_total_weight(math.inf if has_data else 0.0)

    def _member(self, worker: Worker, state: HierarchicalState) -> Worker:
        """Return the worker as the inner strategy sees it."""
        network = GroupNetwork(worker.network, self._groups(worker).own)
        return cast(Worker, InnerView(worker, network, partial(state.take_inner, worker)))

    def _groups(self, worker: Worker) -> Groups:
        network = worker.network
        key = worker.rank, worker.size if self.groups is not None else tuple(network.hosts)
        if key not in self._known_groups:
            self._known_groups[key] = divided(self.groups, network)
        return self._known_groups[key]
