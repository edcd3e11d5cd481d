"""A session in one process: what attaching does to a model, an optimizer and a loop, and what is refused with a way
out.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tacit


def model_and_optimizer(**settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def take_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, session: tacit.Session | None = None
) -> None:
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4, generator=draws)).square().mean()
        loss.backward()
        if session is not None:
            session.observe(loss)
        optimizer.step()


STRATEGIES = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.LocalSGD(period=tacit.Every(3), overlap_steps=2),
    tacit.LocalSGD(period=tacit.LossPeriod(initial=2)),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=2, sampling_steps=4)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_one_worker_is_plain_training_bit_for_bit(strategy):
    plain, optimizer = model_and_optimizer()
    take_steps(plain, optimizer, 10)
    model, optimizer = model_and_optimizer()
    with tacit.attach(model, optimizer, strategy) as session:
        take_steps(model, optimizer, 10, session)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert session.run.status == "finished" and session.run.summary()["steps"] == 10
    assert session.run.summary()["bytes_sent"] == 0


def test_nothing_is_left_behind():
    model, optimizer = model_and_optimizer()
    before = threading.active_count()
    session = tacit.attach(model, optimizer, tacit.AllReduce())
    take_steps(model, optimizer, 2)
    storage = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storage) == 1  # one flat buffer while attached
    session.close()
    assert session.close() is session.run  # twice is once
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 4
    assert threading.active_count() == before
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert "_step_supports_amp_scaling" not in optimizer.__dict__
    tacit.attach(model, optimizer, tacit.AllReduce()).close()  # and again


def test_an_error_in_the_loop_ends_the_session_without_a_last_round():
    model, optimizer = model_and_optimizer()
    with pytest.raises(ZeroDivisionError), tacit.attach(model, optimizer, tacit.AllReduce()) as session:
        take_steps(model, optimizer, 2)
        raise ZeroDivisionError("the user's own")
    assert session.run.status == "failed: the user's own" and session.run.summary()["steps"] == 2
    with pytest.raises(KeyboardInterrupt), tacit.attach(model, optimizer, tacit.AllReduce()) as session:
        raise KeyboardInterrupt
    assert session.run.status == "interrupted"
    assert not optimizer._optimizer_step_pre_hooks


# What may change under our feet.


def test_moving_a_model_without_changing_it_is_followed():
    model, optimizer = model_and_optimizer()
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(1)))
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    take_steps(model, optimizer, 1)
    expected = copy.deepcopy(model)
    session.close()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        (lambda model, optimizer: model.double(), "move or cast the model before"),
        (
            lambda model, optimizer: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
            "without assign=True",
        ),
        (
            lambda model, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]}),
            "add all groups first",
        ),
    ],
    ids=["model.double()", "assign=True", "add_param_group"],
)
@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(1))], ids=str)
def test_changes_that_cannot_be_followed_are_refused(change, way_out, strategy):
    model, optimizer = model_and_optimizer()
    tacit.attach(model, optimizer, strategy)
    change(model, optimizer)
    draws = torch.randn(5, 4, dtype=next(model.parameters()).dtype)
    model(draws).square().mean().backward()
    with pytest.raises(tacit.MisplacedCall, match=way_out):
        optimizer.step()


def test_a_closure_is_fine_where_it_is_not():
    model, optimizer = model_and_optimizer()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        return loss

    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        for _ in range(3):
            optimizer.step(closure)
    assert session.step == 3


def test_a_second_model_has_a_session_of_its_own_and_a_second_session_is_refused():
    (first, one), (second, two) = model_and_optimizer(), model_and_optimizer()
    with tacit.attach(first, one, tacit.AllReduce()) as a, tacit.attach(second, two, tacit.LocalSGD()) as b:
        with pytest.raises(tacit.MisplacedCall, match="attached already"):
            tacit.attach(first, one, tacit.AllReduce())
        take_steps(first, one, 2)
        take_steps(second, two, 3)
    assert (a.step, b.step) == (2, 3)


def test_a_compiled_model_works():
    model, optimizer = model_and_optimizer()
    compiled = torch.compile(model, backend="eager")
    with tacit.attach(compiled, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        take_steps(compiled, optimizer, 4)
    assert session.step == 4
    plain, optimizer = model_and_optimizer()
    take_steps(plain, optimizer, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


# Models of all kinds.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.frozen(self.embedding(x)))


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(2))], ids=str)
def test_tied_frozen_and_unused_parameters(strategy):
    torch.manual_seed(0)
    model = Tied()
    frozen, unused = model.frozen.weight.clone(), model.unused.weight.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with tacit.attach(model, optimizer, strategy) as session:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.arange(7)).square().sum().backward()
            optimizer.step()
    assert model.out.weight is model.embedding.weight
    assert torch.equal(model.frozen.weight, frozen) and torch.equal(model.unused.weight, unused)
    assert session.run.parameters.numel() == 7 * 4 + 2 * 2 + 2


def test_mixed_dtypes_and_channels_last():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 2).bfloat16())
    model[0].to(memory_format=torch.channels_last)
    strides = model[0].weight.stride()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plain = copy.deepcopy(model)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)

    def step(m, o):
        o.zero_grad()
        m[2](m[1](m[0](torch.ones(2, 3, 4, 4))).bfloat16()).float().square().sum().backward()
        o.step()

    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2), outer=tacit.OuterSGD(lr=1.0))):
        assert model[0].weight.stride() == strides
        for _ in range(4):
            step(model, optimizer)
    for _ in range(4):
        step(plain, plain_optimizer)
    assert model[2].weight.dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_parameter_groups_keep_their_rates():
    model, _ = model_and_optimizer()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    first = model[0].weight.clone()
    with tacit.attach(model, optimizer, tacit.AllReduce()):
        take_steps(model, optimizer, 3)
    assert torch.equal(model[0].weight, first)


# Losses.


def test_a_period_that_needs_the_loss_names_the_line_that_tells_it():
    model, optimizer = model_and_optimizer()
    tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.LossPeriod(initial=2)))
    with pytest.raises(tacit.MisplacedCall, match=r"session\.observe\(loss\)"):
        take_steps(model, optimizer, 2)


def test_the_history_is_the_mean_of_the_losses_told():
    model, optimizer = model_and_optimizer()
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=4) as session:
        for value in (4.0, 3.0, 2.0, 1.0):
            session.observe(value, samples=1)
            session.observe(value + 1.0, samples=3)  # micro-batches of one step, weighted by their samples
            optimizer.step()
    assert [row["loss"] for row in session.run.history] == [4.75, 3.75, 2.75, 1.75]
    assert [row["step"] for row in session.run.history] == [1, 2, 3, 4]


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(9))], ids=str)
def test_a_loss_that_is_not_finite_stops_the_run(strategy):
    model, optimizer = model_and_optimizer()
    session = tacit.attach(model, optimizer, strategy)
    session.observe(1.0)
    optimizer.step()
    session.observe(float("nan"))
    with pytest.raises(tacit.NotFinite, match="worker 0 is nan in step 2"):
        optimizer.step()
    assert session.run.status.startswith("failed") and len(session.run.history) == 1


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(2))], ids=str)
def test_steps_after_the_announced_ones_change_nothing_and_are_warned_of_once(strategy, caplog):
    plain, optimizer = model_and_optimizer()
    take_steps(plain, optimizer, 2)
    model, optimizer = model_and_optimizer()
    session = tacit.attach(model, optimizer, strategy, steps=2)
    take_steps(model, optimizer, 5)
    run = session.close()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert run.status == "finished" and session.step == run.summary()["steps"] == 2
    [message] = caplog.messages
    assert message.startswith(
        "all steps=2 announced steps are taken, so further steps change nothing; end the loop there"
    )


def test_a_closure_in_a_step_too_many_is_evaluated_and_changes_nothing(caplog):
    model, optimizer = model_and_optimizer()
    session = tacit.attach(model, optimizer, tacit.AllReduce(), steps=1)
    take_steps(model, optimizer, 1)
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    session.close()
    assert len(caplog.messages) == 1


def test_calls_after_the_end_are_refused():
    model, optimizer = model_and_optimizer()
    session = tacit.attach(model, optimizer, tacit.AllReduce())
    session.close()
    with pytest.raises(tacit.MisplacedCall, match="after the session was closed"):
        session.checkpoint("nowhere")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"buffers": "averge"}, "did you mean 'average'"),
        ({"optimizer_state": "rest"}, "did you mean 'reset'"),
        ({"security": "none"}, "must be one of token, curve, plain"),
        ({"log": "tensorbord"}, "did you mean 'tensorboard'"),
        ({"timeout_s": 0}, "timeout_s=0 must be positive"),
    ],
)
def test_bad_arguments_say_the_way_out(arguments, match):
    model, optimizer = model_and_optimizer()
    with pytest.raises(ValueError, match=match):
        tacit.attach(model, optimizer, tacit.AllReduce(), **arguments)
    assert not optimizer._optimizer_step_pre_hooks  # nothing was done


def test_an_optimizer_of_another_model_is_refused():
    model, _ = model_and_optimizer()
    _, optimizer = model_and_optimizer()
    with pytest.raises(ValueError, match="not one of the model's"):
        tacit.attach(model, optimizer, tacit.AllReduce())


def test_a_model_wrapped_in_ddp_is_refused():
    model, optimizer = model_and_optimizer()
    wrapped = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(TypeError, match="call the inner model"):
        tacit.attach(wrapped, optimizer, tacit.AllReduce())
    assert tacit.attach(model, optimizer, tacit.AllReduce()).close().status == "finished"


def test_a_process_alone_may_send_to_itself_as_a_simulated_worker_may():
    @dataclass(frozen=True)
    class Passed(tacit.Message):
        parameters: torch.Tensor

    @dataclass(frozen=True, kw_only=True)
    class ToTheRight(tacit.Strategy[None]):
        def after_step(self, worker, state):
            worker.network.send((worker.rank + 1) % worker.size, Passed(worker.parameters))
            source, passed = worker.network.receive(Passed)
            assert source == 0
            worker.parameters.add_(passed.parameters).div_(2)

    plain, optimizer = model_and_optimizer()
    take_steps(plain, optimizer, 4)
    model, optimizer = model_and_optimizer()
    with tacit.attach(model, optimizer, ToTheRight()):
        take_steps(model, optimizer, 4)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
