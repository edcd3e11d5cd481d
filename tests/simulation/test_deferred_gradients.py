"""Gradients that are sent to a server: evaluated together when the server uses them, never if it drops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit import workloads
from tacit.core.worker import Worker
from tacit.simulation.engine.deferred import DeferredGradient, DeferredGradients, DeferredTensor
from tacit.strategies.servers import ParameterServerStrategy
from tacit.testing.toys import FirstOfAll

WORKERS, K, UPDATES = 12, 6, 8
CLUSTER = tacit.Cluster(workers=WORKERS, compute=tacit.Exponential(mean_s=0.02))


class Counting(nn.Linear):
    """Counts its calls in training: one per call of the engine with vmap, one per gradient without."""

    calls: ClassVar[int] = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += self.training
        return super().forward(x)


def counted(strategy: tacit.Strategy, cluster: tacit.Cluster = CLUSTER, **settings: Any) -> tuple[tacit.Run, int]:
    """Return a run, and the calls of its model in training."""
    torch.manual_seed(0)
    data = torch.randn(240, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(240, 1)
    workload = workloads.custom(Counting(3, 1), nn.functional.mse_loss, data=data, batch_size=4)
    Counting.calls = 0
    run = tacit.simulate(workload, strategy, cluster=cluster, steps=UPDATES, **settings)
    return run, Counting.calls


@pytest.mark.parametrize("kind", [tacit.KSync, tacit.KBatchSync])
def test_an_update_needs_one_call_of_the_engine(kind: type[ParameterServerStrategy]):
    _, calls = counted(kind(k=K), engine="vmap")
    assert calls == UPDATES


def test_gradients_of_several_updates_at_one_model_share_a_call():
    _, calls = counted(tacit.KBatchAsync(k=K), engine="vmap")
    assert UPDATES / 2 < calls < UPDATES


@pytest.mark.parametrize("kind", [tacit.KSync, tacit.KBatchSync])
def test_cancelled_gradients_are_not_evaluated_and_few_late_ones_are(kind: type[ParameterServerStrategy]):
    run, gradients = counted(kind(k=K), replace(CLUSTER, latency_s=0.004), engine="loop")
    landed, late = len(run.trace.of("compute")), sum(note.label == "late" for note in run.trace.of("note"))
    assert len(run.trace.of("cancelled")) > 10
    assert K * UPDATES <= gradients <= landed
    assert late > 3
    assert gradients - K * UPDATES < late


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.KSync(k=K),
        tacit.KBatchSync(k=K),
        tacit.KBatchAsync(k=K),
        tacit.KSync(k=K, shards=2),
        tacit.KBatchSync(k=K, compressor=tacit.TopK(fraction=0.5)),
        tacit.Ringleader(),
    ],
    ids=str,
)
def test_together_and_one_by_one_agree_to_rounding(strategy: tacit.Strategy):
    together, alone = (
        tacit.simulate(workloads.digits(), strategy, cluster=CLUSTER, steps=UPDATES, engine=engine)
        for engine in ("vmap", "loop")
    )
    torch.testing.assert_close(together.parameters, alone.parameters, rtol=1e-4, atol=1e-5)
    assert together.trace.digest == alone.trace.digest


def test_batch_norm_and_dropout_see_the_batches_of_a_worker_in_order():
    """A worker's random state and buffers do not depend on when its gradients are evaluated."""

    class AtOnce(tacit.KBatchSync):
        def before_step(self, worker: Worker, state: Any) -> None:
            worker.gradient.sum()  # before the update is skipped: evaluated at once
            super().before_step(worker, state)

    free = tacit.Cluster(
        workers=4, compute=tacit.Exponential(mean_s=1.0), latency_s=0, bandwidth_bytes_per_s=float("inf")
    )
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    data = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 1)
    workload = workloads.custom(model, nn.functional.mse_loss, data=data, batch_size=4)
    runs = [tacit.simulate(workload, kind(k=6), cluster=free, steps=5) for kind in (tacit.KBatchSync, AtOnce)]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_a_gradient_that_is_changed_in_place_is_sent_changed():
    class Doubled(FirstOfAll):
        def before_step(self, worker: Worker, state: Any) -> None:
            worker.skip_update()
            worker.gradient[:2].mul_(2.0)
            worker.gradient[2:] *= 2.0
            super().before_step(worker, state)

    class Replaced(FirstOfAll):
        def before_step(self, worker: Worker, state: Any) -> None:
            worker.skip_update()
            worker.gradient = worker.gradient * 2
            super().before_step(worker, state)

    doubled, _ = counted(Doubled(), engine="loop")
    replaced, _ = counted(Replaced(), engine="loop")
    plain, _ = counted(FirstOfAll(), engine="loop")
    assert torch.equal(doubled.parameters, replaced.parameters)
    assert not torch.equal(doubled.parameters, plain.parameters)


def test_a_non_finite_loss_names_the_worker_whose_gradient_it_is():
    class Diverging(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / (x[..., :1] != 7.0)

    data = torch.zeros(8, 3), torch.zeros(8, 1)
    data[0][6:] = 7.0  # the data of rank 3
    workload = workloads.custom(Diverging(3, 1), nn.functional.mse_loss, data=data, batch_size=2, split="contiguous")
    with pytest.raises(tacit.NotFinite) as caught:
        tacit.simulate(workload, tacit.KSync(k=4), cluster=tacit.Cluster(workers=4), steps=2)
    assert caught.value.rank == 3


class Source:
    """Evaluates gradients of one worker: 0, 1, 2, 3, 4, and counts how often it is asked to."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.gradient = DeferredGradient(0, 0, None, self.evaluate, torch.zeros(5))

    def evaluate(self) -> None:
        self.evaluations += 1
        self.gradient.value = torch.arange(5.0)

    def tensor(self) -> DeferredTensor:
        return DeferredTensor.of(self.gradient)


def test_what_a_message_needs_does_not_evaluate():
    source = Source()
    tensor = source.tensor()
    assert (tensor.shape, tensor.dim(), tensor.numel(), tensor.nbytes, len(tensor)) == ((5,), 1, 5, 20, 5)
    assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")
    part = tensor[1:4].clone()
    assert (len(part), source.evaluations) == (3, 0)
    assert part.tolist() == [1.0, 2.0, 3.0]
    assert tensor[-2:].tolist() == [3.0, 4.0]
    assert source.evaluations == 1


def test_views_share_their_numbers_and_clones_do_not():
    tensor = Source().tensor()
    view, clone, clone_of_view = tensor[1:3], tensor.clone(), tensor[1:3].clone()
    tensor.mul_(10.0)
    view += 1.0
    assert tensor.tolist() == [0.0, 11.0, 21.0, 30.0, 40.0]
    assert clone.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert clone_of_view.tolist() == [1.0, 2.0]
    assert tensor.clone().tolist() == view.new_tensor([0.0, 11.0, 21.0, 30.0, 40.0]).tolist()


def test_torch_and_numpy_functions_take_deferred_tensors():
    one, other = Source().tensor(), Source().tensor()
    assert torch.stack([one, other]).sum().item() == 20.0
    assert one.numpy().tolist() == other.tolist()
    assert torch.zeros(5).add_(one, alpha=2.0).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert (torch.ones(5) * other).sum().item() == 10.0


def test_the_collection_forgets_what_nobody_holds_and_keeps_rows():
    kept, row = DeferredGradients(), torch.tensor([1.0, 2.0])
    gradient, dropped = (DeferredGradient(rank, 0, None, list, row) for rank in (0, 1))
    kept.add(gradient)
    kept.add(dropped)
    del dropped
    for rank in (0, 1):
        kept.keep_row(rank, row)
    row.zero_()
    assert gradient.parameters is not None
    assert gradient.parameters.tolist() == [1.0, 2.0]
    assert (0 in kept, 1 in kept) == (True, False)
    assert kept.take() == [gradient]
    assert 0 not in kept
