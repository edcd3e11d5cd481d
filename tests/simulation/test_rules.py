"""The nine rules of the design (docs/architecture.md), each a test."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import tacit
from tacit import workloads
from tacit.record.trace import Trace
from tacit.simulation.engine.engine import Engine
from tacit.simulation.fibers import make_fiber
from tacit.strategies import Strategy
from tacit.testing.toys import Answer, AskAround, Ball, FirstOfAll, Gathering, Gradient, NewModel, PingPong, Question

QUADRATIC = workloads.quadratic(dimension=6)
STRATEGIES = [
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=2), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)),
    tacit.LocalSGD(period=tacit.LossPeriod(initial=2), overlap_steps=1),
    AskAround(),
    PingPong(),
    Gathering(),
    FirstOfAll(),
]


def simulate(strategy: Strategy, workers: int = 4, steps: int = 12, workload=QUADRATIC, **settings) -> tacit.Run:
    cluster = settings.pop("cluster", None) or tacit.Cluster(workers=workers, **settings.pop("cluster_settings", {}))
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=settings.pop("seed", 1), **settings)


# 1. One suspension point.


@pytest.mark.parametrize("host", ["greenlet", "thread"])
def test_parking_keeps_each_fibers_grad_mode(host: str):
    seen: list[tuple[str, bool]] = []

    def careless() -> None:
        torch.set_grad_enabled(False)
        fibers["careless"].park()
        seen.append(("careless", torch.is_grad_enabled()))

    def other() -> None:
        seen.append(("other", torch.is_grad_enabled()))
        fibers["other"].park()
        seen.append(("other", torch.is_grad_enabled()))

    fibers = {name: make_fiber(host, body) for name, body in (("careless", careless), ("other", other))}
    for name in ("careless", "other", "careless", "other"):
        fibers[name].resume()
        assert torch.is_grad_enabled(), "a no_grad left open in a fiber leaked out"
    assert seen == [("other", True), ("careless", False), ("other", True)]
    assert all(fiber.is_over for fiber in fibers.values())


@pytest.mark.parametrize("host", ["greenlet", "thread"])
def test_parking_inside_backward_is_refused(host: str):
    def body() -> None:
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda gradient: fiber.park())
        x.sum().backward()

    fiber = make_fiber(host, body)
    with pytest.raises(tacit.MisplacedCall, match=r"inside backward\(\).*do it in before_step"):
        fiber.resume()


def test_only_fibers_knows_greenlet_and_switches():
    source = Path(tacit.__file__).parent
    for path in sorted(source.rglob("*.py")):
        imported = {
            a.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import) for a in node.names
        }
        assert "greenlet" not in imported or path.name == "fibers.py", path


# 2. A worker is a monitor.


def test_a_handler_may_not_block_or_touch_parameters():
    class Blocking(AskAround):
        def on_message(self, worker, state, source, message):
            worker.network.receive(Ball)

    class Touching(AskAround):
        def on_message(self, worker, state, source, message):
            worker.parameters.zero_()

    class Meeting(AskAround):
        def on_message(self, worker, state, source, message):
            worker.network.all_reduce_mean(state.shared)

    with pytest.raises(tacit.MisplacedCall, match="a handler may not block"):
        simulate(Blocking())
    with pytest.raises(tacit.MisplacedCall, match="may not touch worker.parameters"):
        simulate(Touching())
    with pytest.raises(tacit.MisplacedCall, match="a handler may not block"):
        simulate(Meeting())


def test_a_handler_answers_while_its_worker_computes():
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1.0), speed={1: 0.1}, latency_s=0.01)
    run = simulate(AskAround(every=1), cluster=cluster, steps=2)
    answers = [e for e in run.trace.of("send") if e.label == "Answer" and e.rank == 1]
    busy = [(e.start_s, e.time_s) for e in run.trace.of("compute") if e.rank == 1]
    assert any(start < answers[0].time_s < end for start, end in busy)
    notes = [e.value for e in run.trace.of("note") if e.rank == 1]
    assert notes[0] == 0  # rank 1 had finished no step when it answered first


def test_a_handler_sees_the_step_of_its_own_time_though_steps_run_ahead():
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1.0), speed={0: 2.0}, latency_s=0.01)
    run = simulate(AskAround(every=5), cluster=cluster, steps=10)
    notes = [(e.time_s, e.value) for e in run.trace.of("note") if e.rank == 1]
    assert notes[0] == (pytest.approx(2.51, abs=1e-3), 2)  # asked at 2.5 s, when rank 1 had done 2 of its 5 quiet steps


def test_a_worker_that_is_done_still_answers():
    class Leaving(AskAround):
        def finish(self, worker, state):
            pass

    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1.0), speed={1: 0.1})
    run = simulate(Leaving(every=2), cluster=cluster, steps=4)
    assert run.status == "finished"
    assert max(e.time_s for e in run.trace.of("receive") if e.rank == 0) > 30.0  # rank 0 took its last step before 5 s


# 3. Compute is charged on entry.


def test_a_gradient_is_taken_at_the_parameters_of_its_start():
    """The server moves while learners compute, yet a learner's gradient belongs to the model it started from."""

    @dataclass(frozen=True, kw_only=True)
    class ComputeClock(FirstOfAll):
        cancels = False

        def before_step(self, worker, state):
            started_from = worker.parameters.clone()
            torch.testing.assert_close(worker.gradient, started_from * eigenvalues)
            super().before_step(worker, state)

        def on_message(self, worker, state, source, message):
            state["model"], state["is_new"] = message.value, True

    from tacit.core.randomness import Streams

    workload = workloads.quadratic(dimension=6, noise=0.0)
    problem = workload.open(4, Streams(1))
    one = torch.ones(6, dtype=torch.float64, requires_grad=True)
    batch = problem.collate([0], [problem.samplers[0].take(1)[0]])
    name = problem.layout.names[0]
    loss = torch.func.functional_call(problem.module, {name: one}, tuple(part[0] for part in batch))
    (eigenvalues,) = torch.autograd.grad(loss, one)
    simulate(ComputeClock(), workload=workload, steps=8)


def test_a_step_takes_the_time_that_was_drawn():
    run = simulate(tacit.AllReduce(), cluster_settings={"compute": tacit.Recorded(times_s=[0.5, 1.5])})
    lengths = {round(e.time_s - e.start_s, 9) for e in run.trace.of("compute")}
    assert lengths == {0.5, 1.5}


# 4. Deterministic.


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_same_seed_same_digest_on_both_hosts(strategy: Strategy):
    first, second = simulate(strategy, host="greenlet"), simulate(strategy, host="greenlet")
    threads, other = simulate(strategy, host="thread"), simulate(strategy, seed=2)
    assert first.digest == second.digest == threads.digest
    assert first.digest != other.digest
    assert first.trace.digest == threads.trace.digest != other.trace.digest


def test_running_ahead_changes_neither_trace_nor_model():
    class Step(tacit.LocalSGD):
        def hook_free_steps(self, worker, state):
            return 0

    ahead, stepwise = simulate(tacit.LocalSGD(period=tacit.Every(5))), simulate(Step(period=tacit.Every(5)))
    assert ahead.trace.digest == stepwise.trace.digest
    torch.testing.assert_close(ahead.parameters, stepwise.parameters)
    assert [row["time_s"] for row in ahead.history] == [row["time_s"] for row in stepwise.history]


@pytest.mark.parametrize("evaluate_every", [1, 7, 20])
def test_steps_behind_an_untouched_hook_are_queued_before_it_runs(evaluate_every: int, monkeypatch: pytest.MonkeyPatch):
    class AsHooksRun(tacit.SwarmSGD):
        def untouched_steps(self, worker, state):
            return self.hook_free_steps(worker, state)

    queued: list[int] = []
    advance = Engine.advance
    monkeypatch.setattr(Engine, "advance", lambda *given: (queued.append(len(given[3])), advance(*given)))
    ahead = simulate(tacit.SwarmSGD(local_steps=4), evaluate_every=evaluate_every)
    longest, queued[:] = max(queued), []
    behind = simulate(AsHooksRun(local_steps=4), evaluate_every=evaluate_every)
    assert ahead.trace.digest == behind.trace.digest and torch.equal(ahead.parameters, behind.parameters)
    assert [row["loss"] for row in ahead.history] == [row["loss"] for row in behind.history]
    assert longest == (1 if evaluate_every == 1 else max(queued) + 1)


def test_a_hook_that_uses_the_parameters_of_an_untouched_step_is_refused():
    class Wrong(tacit.SwarmSGD):
        def untouched_steps(self, worker, state):
            return 10

    with pytest.raises(
        tacit.MisplacedCall, match=r"untouched_steps\(\) counts step \d+, whose hook uses worker\.param"
    ):
        simulate(Wrong(local_steps=2), evaluate_every=12)


def test_nothing_reads_the_real_clock():
    source = Path(tacit.__file__).parent / "simulation"
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {a.name for a in node.names} if isinstance(node, ast.Import) else set()
            own = {"time", "random"} if path.name == "process_state.py" else set()  # of the script that is simulated
            assert not (names - own) & {"time", "datetime", "random"}, path


def test_a_new_fault_leaves_other_streams_alone():
    plain = simulate(tacit.LocalSGD(period=tacit.Every(3)))
    lossy = simulate(
        tacit.LocalSGD(period=tacit.Every(3)), cluster_settings={"faults": [tacit.MessageLoss(probability=0.2)]}
    )
    assert torch.equal(plain.parameters, lossy.parameters)
    assert lossy.summary()["time_s"] > plain.summary()["time_s"]


# 5. A dry agenda with somebody waiting is Deadlock.


def test_a_dry_agenda_is_a_deadlock_that_says_who_waits_for_what_since_when():
    @dataclass(frozen=True, kw_only=True)
    class Hoping(Strategy[None]):
        def after_step(self, worker, state):
            if worker.rank == 2:
                worker.network.receive(Answer, source=3)

    with pytest.raises(
        tacit.Deadlock, match=r"with seed=7.*\n.*worker 2 waits in receive\(Answer, source=3\) since 0\.0\d+ s"
    ) as caught:
        simulate(Hoping(), seed=7)
    assert caught.value.waiting[0][:2] == (2, "receive(Answer, source=3)")
    assert caught.value.run is not None and caught.value.run.status.startswith("failed: deadlock")


def test_a_deadlock_in_a_collective_names_the_workers_that_are_missing():
    @dataclass(frozen=True, kw_only=True)
    class OnlySome(Strategy[None]):
        def after_step(self, worker, state):
            if worker.rank != 1:
                worker.network.all_reduce_mean(worker.parameters)

    with pytest.raises(tacit.Deadlock, match=r"worker 0 waits in all-reduce 1 for worker 1 since"):
        simulate(OnlySome())


def test_a_run_recorded_with_class_names_as_labels_is_refused():
    trace = Trace()
    trace.compute(0, 1, 0.0, 1.0)
    trace.receive(0, 1, 1.0, 40, "SwarmMessage")
    run = tacit.Run("quadratic()", "SwarmSGD()", 2, 1, 0, trace=trace, record={"world": "processes"})
    with pytest.raises(ValueError, match="labelled SwarmMessage, which are no wire names .* record the run again"):
        tacit.simulate(workloads.quadratic(), tacit.SwarmSGD(), steps=1, replay=run)


def test_collectives_that_do_not_match_are_told():
    @dataclass(frozen=True, kw_only=True)
    class Odd(Strategy[None]):
        def after_step(self, worker, state):
            if worker.rank == 1:
                worker.network.broadcast(torch.zeros(2))
            else:
                worker.network.all_reduce_mean(torch.zeros(2))

    @dataclass(frozen=True, kw_only=True)
    class Uneven(Strategy[None]):
        def after_step(self, worker, state):
            worker.network.all_reduce_mean(torch.zeros(2 + worker.rank))

    with pytest.raises(
        tacit.Disagreement,
        match=r"ranks disagree on the collective: (broadcast|all-reduce) on rank \d, (broadcast|all-reduce) on ranks? [\d, ]+; "
        r"all ranks must make the same calls in the same order\.",
    ) as caught:
        simulate(Odd())
    error = caught.value
    called = {rank: "broadcast" if rank == 1 else "all-reduce" for rank in range(4)}
    assert error.mine == called[error.rank] and {called[rank] for rank in error.others} == {error.mean}
    with pytest.raises(
        tacit.Disagreement,
        match=r"disagree on the size of a round: \(3,\) of torch.float32 on rank 1, \(2,\) of torch.float32 on rank 0; "
        r"all ranks must pass tensors of one shape and type\.",
    ):
        simulate(Uneven())


# 6. Cancelling.


@pytest.mark.parametrize("cancel", ["instant", "step_end"])
def test_abandoning_a_step_saves_time_only_where_the_cluster_says_so(cancel: str):
    cluster = tacit.Cluster(
        workers=2,
        compute=tacit.Constant(mean_s=1.0),
        speed={1: 0.2},
        cancel=cancel,
        latency_s=0.0,
        bandwidth_bytes_per_s=float("inf"),
    )
    run = simulate(FirstOfAll(), cluster=cluster, steps=4)
    cancelled = [e for e in run.trace.of("cancelled") if e.rank == 1]
    if cancel == "instant":
        assert [(e.start_s, e.time_s) for e in cancelled[:2]] == [(0.0, 1.0), (1.0, 2.0)]
    else:
        assert [(e.start_s, e.time_s) for e in cancelled] == [(0.0, 5.0)]  # paid in full, though overtaken after 1 s
    # Worker 0 begins its next step before the new model is back: at once it costs nothing, at step end a step each
    # time.
    assert run.summary()["time_s"] == pytest.approx(4.0 if cancel == "instant" else 1.0 + 3 * 2.0)


def test_a_server_steps_with_the_rate_it_is_given():
    class Halving(FirstOfAll):
        def serve(self, server, state):
            for _ in range(server.steps):
                source, gradient = server.network.receive(Gradient)
                before = server.parameters.clone()
                server.update(gradient.value, learning_rate=0.05)
                torch.testing.assert_close(server.parameters, before - 0.05 * gradient.value)
                server.network.send(source, NewModel(server.parameters))

    run = simulate(Halving(), workers=1, steps=3, lr=0.1)
    assert run.history[-1]["step"] == 3


def test_a_strategy_that_abandons_must_say_so():
    class Hasty(FirstOfAll):
        cancels = False

    with pytest.raises(tacit.MisplacedCall, match="Hasty abandons a step, but cancels=False; set cancels = True"):
        simulate(Hasty())


def test_cancelled_gradients_are_never_evaluated():
    calls: list[int] = []

    class Counting(torch.nn.Linear):
        def forward(self, x):
            if self.training:  # evaluations are not
                calls.append(1)
            return super().forward(x)

    data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(40, 1)
    workload = workloads.custom(Counting(3, 1), torch.nn.functional.mse_loss, data=data, batch_size=4)
    run = simulate(FirstOfAll(), workload=workload, steps=10, engine="loop")
    landed, cancelled = len(run.trace.of("compute")), len(run.trace.of("cancelled"))
    assert len(calls) == landed
    assert cancelled > 10


# 7. Bytes are what really travels.


@pytest.mark.parametrize("strategy", [PingPong(), AskAround(), FirstOfAll()], ids=str)
def test_bytes_of_messages_are_their_packed_sizes(strategy: Strategy):
    from tacit.core.messages import Message

    packed: list[int] = []
    original = Message.snapshot
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Message, "snapshot", lambda self: (packed.append(len(self.pack())), original(self))[1])
        run = simulate(strategy)
    assert sum(e.size_bytes for e in run.trace.of("send")) == sum(packed) > 0


def test_bytes_of_a_ring_all_reduce():
    for workers in (2, 3, 5, 8):
        run = simulate(tacit.AllReduce(), workers=workers, steps=3)
        buffer = (6 + 1) * 8  # six float64 and the weight
        assert run.summary()["bytes_sent"] == 3 * 2 * (workers - 1) * buffer  # 2(n−1)/n of the buffer, on n ranks
    assert run.history[-1]["bytes_sent"] == run.summary()["bytes_sent"]


# 8. Faults are values: tests/simulation/test_faults.py.
# 9. A step is a completed attempt.


def test_a_skipped_update_counts_as_a_step_and_changes_nothing():
    @dataclass(frozen=True, kw_only=True)
    class Skipping(Strategy[None]):
        def before_step(self, worker, state):
            if worker.step >= 2:
                worker.skip_update()

    two, twelve = simulate(tacit.LocalSGD(period=tacit.OneShot()), steps=2, workers=1), simulate(Skipping(), workers=1)
    assert torch.equal(two.parameters, twelve.parameters)
    assert twelve.summary()["steps"] == 12


def test_sending_to_nobody_says_who_there_is():
    @dataclass(frozen=True, kw_only=True)
    class Astray(Strategy[None]):
        def after_step(self, worker, state):
            worker.network.send(9, Question(torch.zeros(1)))

    with pytest.raises(ValueError, match="to=9 is not an address; the ranks are 0 to 3"):
        simulate(Astray())
