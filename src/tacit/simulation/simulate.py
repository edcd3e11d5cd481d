"""``tacit.simulate``: train a workload with a strategy on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit.cluster.cluster import Cluster
from tacit.cluster.joins import check_joins
from tacit.core.host_memory import keep_memory
from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy, shards_of
from tacit.errors import Interrupted, RunError, require
from tacit.record.facts import model_facts
from tacit.record.run import Run
from tacit.record.versions import versions
from tacit.session.model.extra_state import MomentsEvery
from tacit.simulation.agenda import rare_collections
from tacit.simulation.engine.choice import choose_engine
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.flat_optimizer import engine_optimizer
from tacit.simulation.engine.moments import Moments
from tacit.simulation.engine.timing_engine import TimingEngine
from tacit.simulation.evaluation import Evaluator, Progress
from tacit.simulation.evaluation.results import store_results
from tacit.simulation.evaluation.timed import TimedEvaluator
from tacit.simulation.fibers import default_host
from tacit.simulation.lockstep import run_lockstep
from tacit.simulation.replay import ReplayWorld, check_replay, cluster_of, described, record_of
from tacit.simulation.servers.fast_servers import run_fast_servers
from tacit.simulation.servers.network_race import run_network_race
from tacit.simulation.servers.network_servers import run_network_servers
from tacit.simulation.servers.server_models import server_models
from tacit.simulation.settings.checks import check_arguments, check_evaluations, check_resumed, warn_of_speeds
from tacit.simulation.settings.configuration import configuration, default_interval
from tacit.simulation.world import World
from tacit.strategies.servers import AdaSync, ParameterServerStrategy
from tacit.training.optimizers import Factory, optimizer_factory
from tacit.training.schedules import Schedule, factors
from tacit.workloads.workload import Problem, Workload


@with_python_numbers
@rare_collections()
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
    optimizer_state: str = "keep",
    moments_every: MomentsEvery = None,
    evaluate_every: int | None = None,
    evaluate_every_s: float | None = None,
    until_loss: float | None = None,
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
    optimizer_state: of each worker, when models are averaged: "keep", "average" or "reset" its moments. moments_every:
        rounds between two averages of the moments; {"exp_avg": 3, "exp_avg_sq": 6} gives each its own (DES-LOC).
    schedule: the factor on the learning rate at a step, as a function of the step or a named schedule.
    evaluate_every: steps between rows of the history; None: about a hundred rows. The time of a row is that of the last
        worker.
    evaluate_every_s: seconds of virtual time between rows, instead: each has the model that the strategy would report
        at that time.
    until_loss: end the run at the first evaluation whose loss is at most this. ``run.record["target"]`` then has its
        step and time, else the best loss.
    engine: "vmap" evaluates gradients together, "loop" one by one, "captured" together as CUDA graphs, "compiled" with
        torch.compile, for long runs; "auto" chooses by a fixed rule among all but "compiled".
    host: what runs the workers, "greenlet" or "thread". None: greenlet if installed, else thread; a faster method
        without either if it gives the same trace and model.
    timing_only: compute no gradients; simulate time and bytes only.
    replay: a run on real processes whose order of steps and messages to repeat, instead of a cluster. With otherwise
        equal arguments, an asynchronous strategy then ends with the model of that run.
    progress: called with step, steps, virtual time and loss at every evaluation.

    An error in the run, and Ctrl-C, has the part of the run up to it as ``error.run``.
    """
    check_arguments(workload, strategy, steps, host)
    check_evaluations(evaluate_every, evaluate_every_s, until_loss, timing_only)
    if replay is not None:
        require(cluster is None, "replay=… has its own times; leave cluster=… out.")
        require(not timing_only, "timing_only=True computes no model, and replay=… repeats one; leave timing_only out.")
        for name, value in (("evaluate_every_s", evaluate_every_s), ("until_loss", until_loss)):
            require(value is None, f"{name}={value} cannot be used with replay=…, which has its own end; leave it out.")
        kept = f'optimizer_state="{optimizer_state}" cannot be used with replay=…; leave it out.'
        require(optimizer_state == "keep", kept)
        check_replay(strategy, replay)
        cluster = cluster_of(replay)
    cluster = Cluster() if cluster is None else cluster
    check_joins(strategy, cluster)
    if isinstance(strategy, ParameterServerStrategy | AdaSync) and strategy.is_speed_biased(cluster.workers):
        warn_of_speeds(workload, strategy, cluster)
    may_race, host, every = host is None, host or default_host(), evaluate_every or default_interval(steps)
    streams, target = Streams(seed), torch.device(device)
    factory = optimizer_factory(optimizer, lr, momentum, weight_decay)
    moments = Moments.of(factory, optimizer_state, moments_every)
    problem = workload.open(cluster.workers, streams)
    problem.to(target)
    first = _start(problem, start.parameters if isinstance(start, Run) else start, target)
    factor = factors(schedule, steps)
    if timing_only:
        made: Engine | TimingEngine = TimingEngine(first, lr, factor, problem.layout)
        evaluated, matrix = None, first.expand(cluster.workers, -1)
    else:
        made = _engine(problem, first, factory, factor, engine, cluster.workers, streams)
        evaluated, matrix = problem, made.matrix
    if evaluate_every_s is None:
        evaluator = Evaluator(evaluated, matrix, steps, every, progress, until_loss)
    else:
        evaluator = TimedEvaluator(evaluated, matrix, steps, evaluate_every_s, progress, until_loss)
    if isinstance(made, Engine):
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
        moments=moments,
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
            optimizer_state=optimizer_state,
            moments_every=moments_every,
            evaluate_every=evaluate_every,
            evaluate_every_s=evaluate_every_s,
            until_loss=until_loss,
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
        check_resumed(start, strategy, steps)
        world.resume(start.server)
        begun = world.servers[0].updates
    evaluator.measure(begun, 0.0, first)
    may_race = may_race and replay is None and evaluate_every_s is None
    try:
        if evaluator.target is not None:
            pass  # the initial model has reached it
        elif may_race and (run_fast_servers(world) or run_network_race(world)):
            run.record = {**run.record, "host": "race"}
        elif may_race and run_network_servers(world):
            run.record = {**run.record, "host": "events"}
        elif may_race and run_lockstep(world):
            run.record = {**run.record, "host": "lockstep"}
        else:
            world.run()
    except (RunError, KeyboardInterrupt) as error:
        store_results(run, world, first, f"failed: {error}" if isinstance(error, RunError) else "interrupted")
        if isinstance(error, RunError):
            error.run = run
            raise
        interrupted = Interrupted(f"interrupted at {world.agenda.now_s:.6g} s")
        interrupted.run = run
        raise interrupted from None
    else:
        store_results(run, world, first, "finished")
    finally:
        made.release()
    return run


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
    keep_memory()
    choice = choose_engine(wanted, problem, workers, first.device)
    storage = first.repeat(workers + 1, 1)  # the last row is scratch memory
    optimizer = engine_optimizer(choice, factory, problem, storage, factor)
    return Engine(problem, storage, optimizer, choice, lambda rank: streams.integer("modules", rank))


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
