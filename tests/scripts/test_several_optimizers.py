"""One model trained by several optimizers (Muon for matrices, AdamW for the rest), in both worlds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit

SETUP = """
model = network()
matrices = [p for p in model.parameters() if p.ndim == 2]
others = [p for p in model.parameters() if p.ndim != 2]
muon, adamw = torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)


def step(*optimizers, loss=lambda: model(batch()).square().mean()):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss().backward()
    for optimizer in optimizers:
        optimizer.step()

"""
TRAIN = """
with tacit.attach(model, [muon, adamw], {strategy}, steps=10{settings}) as session:
    while not session.is_done:
        step({order})
tell(model=flat(model), bytes=session.run.summary()["bytes_sent"], step=session.step)
"""
ALONE = """
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with tacit.attach(model, optimizer, {strategy}, steps=10) as session:
    while not session.is_done:
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()
tell(bytes=session.run.summary()["bytes_sent"])
"""
COLLECTIVE = ["AllReduce()", "LocalSGD(period=Every(4))", "CompressedGradient(compressor=TopK(k=5), feedback=EF21())"]


def assert_replicas_equal(outcome) -> None:
    """Equal bit for bit in one world; the two worlds may sum in another order."""
    for world in (outcome.real, outcome.simulated):
        assert all(torch.equal(told["model"], world[0]["model"]) for told in world)
    torch.testing.assert_close(outcome.real[0]["model"], outcome.simulated[0]["model"])


@pytest.mark.parametrize("strategy", COLLECTIVE)
def test_replicas_end_equal_and_nothing_travels_twice(play, strategy):
    outcome = play(SETUP + TRAIN.format(strategy=strategy, order="muon, adamw", settings=""))
    assert_replicas_equal(outcome)
    assert [told["step"] for told in outcome.everybody] == [10] * 4
    alone = play(ALONE.format(strategy=strategy))
    assert outcome.real[0]["bytes"] == outcome.run.summary()["bytes_sent"]
    assert outcome.real[0]["bytes"] == pytest.approx(alone.real[0]["bytes"], rel=0.01)  # coded indices vary in length


@pytest.mark.parametrize("strategy", ["KAsync(k=2)", "SwarmSGD(local_steps=2)", "KSync(k=2, shards=2)"])
def test_strategies_without_rounds_take_several_optimizers(play, strategy):
    outcome = play(SETUP + "start = flat(model)\n" + TRAIN.format(strategy=strategy, order="muon, adamw", settings=""))
    for told in outcome.real:
        assert torch.equal(told["model"], outcome.real[0]["model"])
    for told in outcome.simulated:
        assert torch.equal(told["model"], outcome.simulated[0]["model"])
    assert outcome.run.status == "finished"


def test_a_server_steps_every_optimizer(play):
    """KSync with all workers averages all gradients, as AllReduce does; the server's optimizers are copies of rank 0's."""
    outcome = play(SETUP + TRAIN.format(strategy="KSync(k=2)", order="muon, adamw", settings=""))
    expected = play(SETUP + TRAIN.format(strategy="AllReduce()", order="muon, adamw", settings=""))
    for told in outcome.everybody:
        torch.testing.assert_close(told["model"], expected.real[0]["model"])


def gradient_of_everybody(model: nn.Module, batches: list[torch.Tensor]) -> None:
    torch.stack([model(x).square().mean() for x in batches]).mean().backward()


def by_hand(size: int, steps: int) -> torch.Tensor:
    draws = [torch.Generator().manual_seed(100 + rank) for rank in range(size)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    parameters = [*model.parameters()]
    optimizers = [
        torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=0.01),
    ]
    for _ in range(steps):
        model.zero_grad()
        gradient_of_everybody(model, [torch.randn(5, 4, generator=one) for one in draws])
        for optimizer in optimizers:
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in parameters])


@pytest.mark.parametrize("order", ["muon, adamw", "adamw, muon"])
def test_all_reduce_communicates_all_gradients_before_the_first_optimizer(play, order):
    outcome = play(SETUP + TRAIN.format(strategy="AllReduce()", order=order, settings=""))
    for told in outcome.everybody:
        torch.testing.assert_close(told["model"], by_hand(2, 10))


RESUME = """
models = []
for is_resumed in (False, True):
    torch.manual_seed(0)
    draws.manual_seed(100 + rank)
    model = network()
    muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02)
    adamw = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01)
    with tacit.attach(model, [muon, adamw], {strategy}, steps=8) as session:
        if is_resumed:
            assert session.resume(FOLDER / sys.argv[1]) == 4
            [batch() for _ in range(4)]
        while not session.is_done:
            step(muon, adamw)
            if session.step == 4:
                session.checkpoint(FOLDER / sys.argv[1])
    models.append(flat(model))
tell(whole=models[0], resumed=models[1])
"""


@pytest.mark.parametrize("strategy", ["AllReduce()", "LocalSGD(period=Every(3))"])
def test_checkpoints_hold_the_state_of_every_optimizer(play, strategy):
    for told in play(SETUP + RESUME.format(strategy=strategy)).everybody:
        assert torch.equal(told["whole"], told["resumed"])


@pytest.mark.parametrize(("policy", "numbers"), [("keep", 49), ("average", 49 + 40 + 2 * 9), ("reset", 49)])
def test_the_state_of_every_optimizer_is_kept_averaged_or_reset(play, policy, numbers):
    """The model has 40 weights in matrices, for each of which Muon keeps one moment, and 9 biases, for which AdamW
    keeps two.
    """
    settings = f', optimizer_state="{policy}"'
    text = TRAIN.format(strategy="LocalSGD(period=Every(5))", order="muon, adamw", settings=settings)
    state = "state = [sorted(map(str, o.state[p])) for o in (muon, adamw) for g in o.param_groups for p in g['params'] if p in o.state]\n"
    outcome = play(SETUP + text.replace("tell(", state + "tell(states=len(state), "))
    for told in outcome.everybody:
        assert told["states"] == (0 if policy == "reset" else 4)
    assert_replicas_equal(outcome)
    with_statistics = numbers + 2  # that the period asks for
    assert outcome.real[0]["bytes"] == outcome.run.summary()["bytes_sent"] == 2 * 2 * with_statistics * 4


SCALED = """
model = nn.ModuleDict({{"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 1, bias=False)}})
first, second = torch.optim.SGD(model["a"].parameters(), lr=0.1), torch.optim.SGD(model["b"].parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
with tacit.attach(model, [first, second], {strategy}, steps=6) as session:
    for number in range(6):
        first.zero_grad()
        second.zero_grad()
        loss = model["b"](model["a"](batch())).square().mean()
        if number == 2 and rank == 1:  # only the gradient of the second optimizer's parameter overflows, on one rank
            loss = loss + model["b"].weight.sum() * 1e38
        scaler.scale(loss).backward()
        {unscale}
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        if number == 2:
            scale = scaler.get_scale()
tell(model=flat(model), scale=scale)
"""


def scaled_by_hand() -> torch.Tensor:
    draws = [torch.Generator().manual_seed(100 + rank) for rank in range(2)]
    torch.manual_seed(0)
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        batches = [torch.randn(5, 4, generator=one) for one in draws]
        losses = [b(a(x)).square().mean() for x in batches]
        (losses[0] if number == 2 else torch.stack(losses).mean()).backward()
        optimizer.step()
    return torch.cat([a.weight.detach().reshape(-1), b.weight.detach().reshape(-1)])


UNSCALE = ["pass", "scaler.unscale_(first); scaler.unscale_(second)"]


@pytest.mark.parametrize("unscale", UNSCALE, ids=["scaled", "unscaled"])
@pytest.mark.parametrize("strategy", ["AllReduce()", "LocalSGD(period=Every(3))"])
def test_an_overflow_in_one_optimizers_gradients_skips_the_step_of_all(play, strategy, unscale):
    outcome = play(SCALED.format(strategy=strategy, unscale=unscale))
    assert_replicas_equal(outcome)
    for world in (outcome.real, outcome.simulated):
        assert [told["scale"] for told in world] == [1024.0, 512.0]
    if (
        strategy == "AllReduce()"
    ):  # the overflowed rank contributes nothing to that step, and takes the other's gradient
        torch.testing.assert_close(outcome.real[0]["model"], scaled_by_hand(), rtol=1e-5, atol=1e-6)


# What is refused, in one process.


def two() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters(), lr=0.1)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 4)).square().mean().backward()


def test_an_optimizer_that_does_not_hold_all_trainable_parameters_is_refused():
    model, first, second = two()
    with pytest.raises(
        ValueError, match=r"SGD does not hold every trainable .* missing: 2\.weight, 2\.bias\. .*\[first, second\]"
    ):
        tacit.attach(model, first, tacit.LocalSGD())
    model[2].requires_grad_(False)
    assert tacit.attach(model, first, tacit.LocalSGD()).close().status == "finished"
    model[2].requires_grad_(True)
    assert tacit.attach(model, [first, second], tacit.LocalSGD()).close().status == "finished"


def test_a_second_session_over_the_same_parameters_is_refused():
    model, first, second = two()
    both = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, [first, second], tacit.LocalSGD()):
        with pytest.raises(tacit.MisplacedCall, match=r"parameter 0\.weight is attached already"):
            tacit.attach(model, both, tacit.LocalSGD())
        with pytest.raises(tacit.MisplacedCall, match=r"parameter weight is attached already"):
            tacit.attach(model[2], second, tacit.LocalSGD())
    assert tacit.attach(model, both, tacit.LocalSGD()).close().status == "finished"


def test_a_parameter_in_two_optimizers_is_refused():
    model, first, second = two()
    both = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"two optimizers hold the parameter 0\.weight"):
        tacit.attach(model, [first, second, both], tacit.LocalSGD())
    with pytest.raises(ValueError, match="one of them twice"):
        tacit.attach(model, [first, second, first], tacit.LocalSGD())
    with pytest.raises(ValueError, match="at least one"):
        tacit.attach(model, [], tacit.LocalSGD())


def test_an_optimizer_that_steps_twice_is_refused():
    model, first, second = two()
    tacit.attach(model, [first, second], tacit.LocalSGD())
    backward(model)
    first.step()
    with pytest.raises(tacit.MisplacedCall, match="SGD steps a second time before AdamW has stepped"):
        first.step()


def test_a_backward_between_two_optimizers_is_refused_where_gradients_are_communicated():
    model, first, second = two()
    for strategy in (tacit.LocalSGD(), tacit.AllReduce()):
        session = tacit.attach(model, [first, second], strategy)
        for _ in range(2):  # clipping between the two is allowed
            backward(model)
            first.step()
            nn.utils.clip_grad_norm_(model[2].parameters(), 0.1)
            second.step()
        backward(model)
        first.step()
        backward(model)
        if isinstance(strategy, tacit.LocalSGD):
            second.step()
            session.close()
        else:
            with pytest.raises(tacit.MisplacedCall, match="gradients of AdamW were computed after"):
                second.step()


def test_closing_in_the_middle_of_a_step_is_refused():
    model, first, second = two()
    session = tacit.attach(model, [first, second], tacit.LocalSGD())
    backward(model)
    first.step()
    with pytest.raises(tacit.MisplacedCall, match="of SGD, AdamW only SGD has stepped"):
        session.close()


def test_a_scaler_that_unscales_only_one_optimizer_is_refused():
    model, first, second = two()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    tacit.attach(model, [first, second], tacit.AllReduce())
    scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
    scaler.unscale_(first)
    scaler.step(first)
    with pytest.raises(tacit.MisplacedCall, match="for all of them or for none"):
        scaler.step(second)


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(3))], ids=str)
def test_one_worker_is_plain_training_bit_for_bit(strategy):
    models = []
    for is_attached in (False, True):
        torch.manual_seed(0)
        model, first, second = two()
        schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (first, second)]
        session = tacit.attach(model, [first, second], strategy) if is_attached else None
        for _ in range(5):
            model.zero_grad()
            backward(model)
            first.step()
            second.step()
            for schedule in schedules:
                schedule.step()
        if session is not None:
            session.close()
        models.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*models, strict=True))
