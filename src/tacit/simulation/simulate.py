"""``tacit.simulate``: train a workload with a strategy on a simulated cluster."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Delay
from tacit.cluster.faults import Slow
from tacit.cluster.joins import check_joins
from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy, shards_of
from tacit.errors import Interrupted, NotFinite, RunError, SpeedBias, nearest, require
from tacit.record.facts import model_facts
from tacit.record.run import Run
from tacit.record.versions import versions
from tacit.simulation.engine.choice import choose_engine
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.flat_optimizer import engine_optimizer
from tacit.simulation.engine.timing_engine import TimingEngine
from tacit.simulation.evaluation import Evaluator, Progress
from tacit.simulation.fibers import HOSTS, default_host
from tacit.simulation.replay import ReplayWorld, check_replay, cluster_of, described, record_of
from tacit.simulation.servers.fast_servers import run_fast_servers
from tacit.simulation.servers.network_servers import run_network_servers
from tacit.simulation.servers.server_models import server_models
from tacit.simulation.world import World
from tacit.strategies.servers import AdaSync, ParameterServerStrategy
from tacit.training.optimizers import Factory, optimizer_factory
from tacit.training.schedules import Schedule, factors
from tacit.workloads.workload import Problem, Workload

_ROWS = 100
"""Approximate number of rows of a history without ``evaluate_every``."""


@with_python_numbers
def simulate(
    workload: Workload,
    strategy: Strategy[Any],
    *,
    cluster: Cluster | None = None,
    steps: int = 500,
    seed: int = 0,
    start: Tensor | Run | None = None,
    optimizer: str | Factory = "sgd",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[int], float] | None = None,
    evaluate_every: int | None = None,
    engine: str = "auto",
    device: str | torch.device = "cpu",
    host: str | None = None,
    timing_only: bool = False,
    replay: Run | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train ``workload`` with ``strategy`` on a simulated ``cluster`` and return the run.

    steps: optimizer steps per worker; for server strategies, updates of the server's model.
    start: initial flat parameters, or a run to continue from its final model; a run with a server also continues the
        server's optimizer and counters, and ``steps`` includes the updates of that run. None: those of the workload.
    optimizer: a name (with lr, momentum, weight_decay) or a function from parameters to a ``torch.optim`` optimizer.
    schedule: the factor on the learning rate at a step, as a function of the step or a named schedule.
    evaluate_every: steps between rows of the history; None: about a hundred rows.
    engine: "vmap" evaluates gradients together, "loop" one by one, "captured" together as CUDA graphs, "compiled" with
        torch.compile, for long runs; "auto" chooses by a fixed rule among all but "compiled".
    host: what runs the workers, "greenlet" or "thread". None: greenlet if installed, else thread; a faster method
        without either if it gives the same trace.
    timing_only: compute no gradients; simulate time and bytes only.
    replay: a run on real processes whose order of steps and messages to repeat, instead of a cluster. With otherwise
        equal arguments, an asynchronous strategy then ends with the model of that run.
    progress: called with step, steps, virtual time and loss at every evaluation.

    An error in the run, and Ctrl-C, has the part of the run up to it as ``error.run``.
    """
    _check(workload, strategy, steps, evaluate_every, host)
    if replay is not None:
        require(cluster is None, "replay=… has its own times; leave cluster=… out.")
        require(not timing_only, "timing_only=True computes no model, and replay=… repeats one; leave timing_only out.")
        check_replay(strategy, replay)
        cluster = cluster_of(replay)
    cluster = Cluster() if cluster is None else cluster
    check_joins(strategy, cluster)
    if isinstance(strategy, ParameterServerStrategy | AdaSync) and strategy.is_speed_biased(cluster.workers):
        _warn_of_speeds(workload, strategy, cluster)
    may_race, host, every = host is None, host or default_host(), evaluate_every or max(1, steps // _ROWS)
    streams, target = Streams(seed), torch.device(device)
    factory = optimizer_factory(optimizer, lr, momentum, weight_decay)
    problem = workload.open(cluster.workers, streams)
    problem.to(target)
    first = _start(problem, start.parameters if isinstance(start, Run) else start, target)
    factor = factors(schedule, steps)
    if timing_only:
        made: Engine | TimingEngine = TimingEngine(first, lr, factor, problem.layout)
        evaluator = Evaluator(None, first.expand(cluster.workers, -1), steps, every, progress)
    else:
        made = _engine(problem, first, factory, factor, engine, cluster.workers, streams)
        evaluator = Evaluator(problem, made.matrix, steps, every, progress)
        evaluator.buffers, evaluator.uses_vmap = made.mean_buffers, partial(_uses_vmap, made)
    model = first.clone() if strategy.has_server else None
    servers = [] if model is None else server_models(model, shards_of(strategy), problem.layout, factory, factor)
    kind = World if replay is None else partial(ReplayWorld, record_of(replay.trace))
    world = kind(
        strategy,
        cluster,
        problem,
        made,
        evaluator,
        steps=steps,
        seed=seed,
        host=host,
        servers=servers,
        server_model=model,
    )
    run = Run(
        workload=str(workload),
        strategy=str(strategy),
        workers=cluster.workers,
        steps=steps,
        seed=seed,
        cluster=str(cluster) if replay is None else described(replay),
        metric_name=problem.metric_name,
        trace=world.trace,
        config=configuration(
            workload,
            strategy,
            cluster=cluster,
            steps=steps,
            seed=seed,
            optimizer=optimizer,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            schedule=schedule,
            evaluate_every=evaluate_every,
            engine=engine,
            device=device,
            timing_only=timing_only,
        ),
        record={
            **_record(made, host, target, cluster),
            **model_facts(first.numel(), first.dtype, first.numel() * first.element_size()),
            "batch": problem.batch_size,
        },
        module=problem.module,
        model_path=problem.model_path,
    )
    begun = 0
    if isinstance(start, Run) and start.server:
        _check_resumed(start, strategy, steps)
        world.resume(start.server)
        begun = world.servers[0].updates
    evaluator.measure(begun, 0.0, first)
    try:
        if may_race and replay is None and run_fast_servers(world):
            run.record = {**run.record, "host": "race"}
        elif may_race and replay is None and run_network_servers(world):
            run.record = {**run.record, "host": "events"}
        else:
            world.run()
    except (RunError, KeyboardInterrupt) as error:
        _finish(run, world, first, f"failed: {error}" if isinstance(error, RunError) else "interrupted")
        if isinstance(error, RunError):
            error.run = run
            raise
        interrupted = Interrupted(f"interrupted at {world.agenda.now_s:.6g} s")
        interrupted.run = run
        raise interrupted from None
    else:
        _finish(run, world, first, "finished")
    finally:
        made.release()
    return run


def _check(workload: object, strategy: object, steps: int, evaluate_every: int | None, host: str | None) -> None:
    if not isinstance(workload, Workload):
        raise TypeError(f"workload={workload!r} must be a workload; try tacit.workloads.digits().")
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy={strategy!r} must be a strategy; try tacit.AllReduce().")
    require(isinstance(steps, int) and steps >= 1, f"steps={steps} must be a whole number, at least 1.")
    require(
        evaluate_every is None or evaluate_every >= 1,
        f"evaluate_every={evaluate_every} must be at least 1; None gives about {_ROWS} rows.",
    )
    require(host is None or host in HOSTS, f"host={host!r} is unknown{nearest(str(host), HOSTS)}")


def _warn_of_speeds(workload: Workload, strategy: Strategy[Any], cluster: Cluster) -> None:
    """Warn if learners differ in speed and in data."""
    ranks = range(cluster.workers)
    speeds = {cluster.speed.get(rank, 1.0) / cluster.slowdown(rank) for rank in ranks}
    delays = {""} if isinstance(cluster.compute, Delay) else {str(cluster.delay(rank)) for rank in ranks}
    is_slow = any(isinstance(fault, Slow) and fault.factor != 1.0 for fault in cluster.faults)
    if workload.is_shuffled is False and (len(speeds) > 1 or len(delays) > 1 or is_slow):
        warnings.warn(
            f"{strategy} uses fast learners more often than slow ones, and {workload} gives them different data: "
            f"the data of fast learners have a larger weight. rate=RescaledRate() or Ringleader() weigh all learners "
            f"equally.",
            SpeedBias,
            stacklevel=3,
        )


def _uses_vmap(engine: Engine) -> bool:
    return engine.choice.engine != "loop"


def _start(problem: Problem, start: Tensor | None, device: torch.device) -> Tensor:
    layout = problem.layout
    named = dict(problem.module.named_parameters())
    require(layout.dimension > 0, "the workload's model has no trainable parameters.")
    own = nn.utils.parameters_to_vector([named[name] for name in layout.names]).detach()
    if start is None:
        return own.clone()
    require(
        start.numel() == layout.dimension,
        f"start has {start.numel()} numbers, but the workload's model has {layout.dimension} parameters.",
    )
    return start.detach().reshape(-1).to(device=device, dtype=own.dtype).clone()


def _engine(
    problem: Problem,
    first: Tensor,
    factory: Factory,
    factor: Callable[[int], float],
    wanted: str,
    workers: int,
    streams: Streams,
) -> Engine:
    choice = choose_engine(wanted, problem, workers, first.device)
    storage = first.repeat(workers + 1, 1)  # the last row is scratch memory
    optimizer = engine_optimizer(choice, factory, problem, storage, factor)
    return Engine(problem, storage, optimizer, choice, lambda rank: streams.integer("modules", rank))


def _check_resumed(start: Run, strategy: Strategy[Any], steps: int) -> None:
    require(
        start.strategy == str(strategy),
        f"start is a run of {start.strategy}, and its server cannot continue as {strategy}; "
        f"pass start=run.parameters to start from its model.",
    )
    made = int(start.server[0]["updates"])
    require(
        steps > made,
        f"steps={steps} includes the updates of start, which has made {made}; pass a larger number.",
    )


def _finish(run: Run, world: World, first: Tensor, status: str) -> None:
    """Store the results of the world in ``run``: the final model, the trace up to now, the history."""
    now_s = world.agenda.now_s
    world.trace.cut(now_s)
    reported = _reported(world, first)
    run.status, run.parameters = status, reported.cpu()
    if run.module is not None:
        _set_buffers(run.module, world.evaluator.buffers())
    run.record = {**run.record, "engine": world.engine.choice.engine, "engine_reason": world.engine.choice.reason}
    if status == "finished" and not (world.servers and world.servers[0].updates == run.steps):
        try:
            world.evaluator.measure(run.steps, now_s, reported)
        except RunError as error:
            run.status = f"failed: {error}"
    run.server = [] if world.is_timing else [server.store() for server in world.servers]
    run.history = world.evaluator.rows(world.trace, now_s)
    last = run.history[-1]["loss"] if run.history else None
    if status == "finished" and not world.is_timing and (last is None or not math.isfinite(last)):
        failure = NotFinite(0, run.steps, math.nan)
        run.status, failure.run = f"failed: {failure}", run
        raise failure


def _set_buffers(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy buffers into the module of the run."""
    for name, buffer in module.named_buffers():
        if name in values:
            buffer.copy_(values[name])


def _reported(world: World, first: Tensor) -> Tensor:
    if world.is_timing:
        return first
    if world.server_model is not None:
        return world.server_model.detach().clone()
    assert isinstance(world.engine, Engine)
    alive = next((w.rank for w in world.workers if not w.is_lost), 0)
    return world.engine.matrix[alive].detach().clone()


def configuration(
    workload: Workload,
    strategy: Strategy[Any],
    *,
    cluster: Cluster,
    steps: int,
    seed: int,
    optimizer: str | Factory,
    lr: float,
    momentum: float,
    weight_decay: float,
    schedule: Schedule | Callable[[int], float] | None,
    evaluate_every: int | None,
    engine: str,
    device: str | torch.device,
    timing_only: bool = False,
) -> dict[str, Any]:
    """Return the settings that reproduce a run, as ``tacit simulate --config`` reads them; functions by name only."""
    is_own = schedule is not None and not isinstance(schedule, Schedule)
    return {
        "workload": str(workload),
        "strategy": str(strategy),
        "seed": seed,
        "steps": steps,
        "optimizer": optimizer if isinstance(optimizer, str) else f"<{_name_of(optimizer)}>",
        **({"lr": lr, "momentum": momentum, "weight_decay": weight_decay} if isinstance(optimizer, str) else {}),
        "schedule": None if schedule is None else f"<{_name_of(schedule)}>" if is_own else str(schedule),
        "evaluate_every": evaluate_every or max(1, steps // _ROWS),
        "engine": engine,
        "device": str(torch.device(device)),
        "threads": torch.get_num_threads(),
        "timing_only": timing_only,
        "cluster": cluster.table(),
    }


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).replace("<", "").replace(">", "")


def _record(engine: Engine | TimingEngine, host: str, device: torch.device, cluster: Cluster) -> dict[str, Any]:
    return {
        **versions(),
        **({} if cluster.cores is None else {"compute_slowdown": cluster.slowdowns}),
        "host": host,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "engine": engine.choice.engine,
        "engine_reason": engine.choice.reason,
        "world": "simulated",
    }
