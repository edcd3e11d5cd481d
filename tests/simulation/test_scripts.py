"""A user's own script under the simulator: the very same file, on many workers, under the virtual clock."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.errors import Deadlock, Interrupted, MisplacedCall, PeerLost, ScriptFailed, TacitError
from tacit.record.trace import COMPUTE
from tacit.simulation.scripts.run import simulate_script
from tacit.testing import toys
from tests.runtime.processes import run_script_alone, together

EXAMPLES = Path(__file__).parents[2] / "examples"
PREAMBLE = """
import json, random, sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
import tacit

folder, rank = Path(__file__).parent, tacit.rank()
torch.manual_seed(rank)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    session.observe(loss)
    optimizer.step()

def attach(strategy=tacit.LocalSGD(period=tacit.Every(2)), steps=6):
    return tacit.attach(model, optimizer, strategy, steps=steps)

def tell(what):
    (folder / f"told-{rank}.json").write_text(json.dumps(what))
"""


@pytest.fixture
def play(tmp_path):
    """Return a function that simulates a script after the preamble and returns the run."""

    def simulated(text: str, *arguments: str, workers: int = 3, preamble: str = PREAMBLE, **options) -> tacit.Run:
        path = tmp_path / "train.py"
        path.write_text(preamble + dedent(text))
        cluster = options.pop("cluster", None) or tacit.Cluster(workers=workers)
        return simulate_script(path, arguments, cluster=cluster, **options)

    return simulated


@pytest.fixture
def told(tmp_path):
    """Return a function that returns what each rank of the script told."""
    return lambda: [json.loads(path.read_text()) for path in sorted(tmp_path.glob("told-*.json"))]


def line_of(text: str, path: Path) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


# The same run as the simulator's own.

AS_A_SCRIPT = """
import tacit
from tacit.testing import toys
from tacit import workloads
from tacit.runtime.train import train

run = train({workload}, {strategy}, steps=43, seed=2, evaluate_every={every})
"""
FAULTS = [
    tacit.Slow(rank=1, factor=3.0, at_s=0.1),
    tacit.Pause(rank=2, at_s=0.3, for_s=0.2),
    tacit.MessageLoss(probability=0.1),
]


QUADRATIC = "workloads.quadratic(dimension=7, heterogeneity=0.5)"
COLLECTIVE = [
    (QUADRATIC, "tacit.AllReduce()"),
    (QUADRATIC, "tacit.LocalSGD(period=tacit.Every(4))"),
    (QUADRATIC, "tacit.LocalSGD(period=tacit.VariancePeriod(initial=2), overlap_steps=1)"),
    ("workloads.digits()", "tacit.LocalSGD(period=tacit.Every(8))"),
]
TALKING = [(QUADRATIC, "toys.AskAround()"), (QUADRATIC, "toys.PingPong()")]  # an evaluation would hold them up


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "strategy", "every", "faults"),
    [
        *((*case, 10, []) for case in COLLECTIVE),
        *((*case, 10, FAULTS) for case in COLLECTIVE),
        *((*case, 43, []) for case in TALKING),
    ],
)
def test_a_script_gives_the_trace_and_the_model_of_the_workload_it_trains(play, workload, strategy, every, faults):
    cluster = tacit.Cluster(workers=4, faults=faults)
    run = play(
        AS_A_SCRIPT.format(workload=workload, strategy=strategy, every=every), preamble="", cluster=cluster, seed=2
    )
    names = {"tacit": tacit, "toys": toys, "workloads": workloads}
    own = tacit.simulate(
        eval(workload, names), eval(strategy, names), cluster=cluster, steps=43, seed=2, evaluate_every=every
    )
    assert list(run.trace) == list(own.trace)
    torch.testing.assert_close(run.parameters, own.parameters)
    assert [row["loss"] for row in run.history] == pytest.approx([row["loss"] for row in own.history], rel=1e-4)


@pytest.mark.parametrize("workers", [1, 8])
def test_the_example_runs_unmodified(capsys, workers):
    cluster = tacit.Cluster(workers=workers)
    runs = [
        simulate_script(EXAMPLES / "train_digits.py", ["--steps", "40"], cluster=cluster, host=host)
        for host in ("greenlet", "thread")
    ]
    assert runs[0].digest == runs[1].digest
    assert runs[0].summary()["steps"] == 40
    assert runs[0].status == "finished"
    assert runs[0].history[-1]["loss"] < 0.7
    assert capsys.readouterr().out.count(f"{workers} workers, 5 rounds: accuracy 0.") == 2


def test_equal_seeds_give_equal_runs_and_others_do_not(play):
    text = "session = attach()\nfor _ in range(6): step()\nsession.close()"
    first, again, other = (play(text, seed=seed) for seed in (5, 5, 6))
    assert first.digest == again.digest != other.digest


# A process of its own, as far as the script can tell.


def test_module_globals_and_modules_beside_the_script_are_each_workers_own(play, told, tmp_path):
    (tmp_path / "helpers.py").write_text("seen = []\nclass Kept: pass\n")
    play(
        """
        import helpers, pickle
        helpers.seen.append(rank)
        seen = [rank]
        session = attach()
        for _ in range(6):
            step()
            helpers.seen.append(rank), seen.append(rank)
            import helpers as again
            assert again is helpers and sys.modules["__main__"].seen is seen
            assert type(pickle.loads(pickle.dumps(helpers.Kept()))) is helpers.Kept
        session.close()
        import os
        tell([helpers.seen, seen, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], sys.argv[1:], __name__])
        """,
        "--fast",
        "3",
    )
    for rank, (theirs, own, *rest) in enumerate(told()):
        assert theirs == own == [rank] * 7
        assert rest == [str(rank), "3", "0", ["--fast", "3"], "__main__"]
    assert "helpers" not in sys.modules


DRAWS = """
as_rank = int(sys.argv[1]) if len(sys.argv) > 1 else rank
random.seed(7), np.random.seed(7), torch.manual_seed(7)
data = tacit.load_once(lambda: [random.random(), np.random.randn(), torch.randperm(5).tolist()])
common = [random.random(), np.random.randn(), torch.rand(()).item()]  # as if everybody had loaded
random.seed(as_rank), np.random.seed(as_rank), torch.manual_seed(as_rank)
loader = torch.utils.data.DataLoader(range(6), batch_size=2, shuffle=True)
session, drawn = attach(tacit.LocalSGD(period=tacit.Every(3))), [torch.rand(()).item()]
for index in range(6):
    drawn += [random.random(), random.gauss(0, 1), float(np.random.randn()), float(np.random.rand()), torch.randn(()).item()]
    drawn += [batch.tolist() for batch in loader] if index % 2 else [float(np.random.randn())]
    step()
    drawn.append(nn.functional.dropout(torch.ones(9)).tolist())
session.close()
tell([common, drawn])
"""


@pytest.mark.slow
@pytest.mark.parametrize("host", ["greenlet", "thread"])
def test_random_draws_are_those_of_a_real_process(play, told, tmp_path, host):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    play(DRAWS, host=host)
    simulated = told()
    together(1, run_script_alone, str(tmp_path / "train.py"), "2")
    assert told()[0] == simulated[2]
    assert simulated[0] != simulated[1]
    assert (before[0], before[1]) == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def test_grad_mode_and_autocast_are_each_workers_own(play, told):
    play(
        """
        from contextlib import ExitStack
        session, seen = attach(), []
        with ExitStack() as stack:
            if rank == 1:
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            for _ in range(6):
                step()
                seen.append(str(model(torch.ones(1, 4)).dtype))
                with torch.set_grad_enabled(rank == 2), session.reported_model():
                    seen.append(torch.is_grad_enabled())
                seen.append(torch.is_grad_enabled())
        session.close()
        tell(seen)
        """
    )
    assert [rows[0::3] for rows in told()] == [[f"torch.{kind}"] * 6 for kind in ("float32", "bfloat16", "float32")]
    assert [rows[1::3] for rows in told()] == [[False] * 6, [False] * 6, [True] * 6]
    assert all(rows[2::3] == [True] * 6 for rows in told())


def test_momentum_and_batch_norm(play, told):
    run = play(
        """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        session = attach()
        for _ in range(6): step()
        session.close()
        tell([model[1].running_mean.tolist(), model[0].weight.tolist()])
        """
    )
    assert run.summary()["rounds"] == 3
    assert all(one == told()[0] for one in told())


def test_uneven_data_ends(play):
    run = play(
        """
        session = attach(steps=None)
        for _ in range(4 + 3 * rank): step()
        session.close()
        """
    )
    steps = [max(e.step for e in run.trace.of(COMPUTE) if e.rank == rank) for rank in range(3)]
    assert steps == [4, 7, 10]
    assert run.status == "finished"


# What a script does differently here.


def test_only_rank_0_is_heard(play, capsys):
    play(
        """
        print("here is", rank)
        print("there is", rank, file=sys.stderr)
        session = attach()
        for _ in range(6):
            step()
            print("step", session.step, "of", rank)
        session.close()
        """
    )
    heard = capsys.readouterr()
    assert heard.out.splitlines() == ["here is 0", *(f"step {n} of 0" for n in range(1, 7))]
    assert heard.err == "there is 0\n"


def test_loader_processes_are_left_out_and_said_once(play, caplog):
    play(
        """
        loader = torch.utils.data.DataLoader(range(6), num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=5)
        assert loader.num_workers == 0 and len(list(loader)) == 6
        session = attach()
        for _ in range(6): step()
        session.close()
        """
    )
    assert [record.message for record in caplog.records] == [
        "num_workers=2 is treated as 0: simulated workers load their data themselves"
    ]
    assert torch.utils.data.DataLoader(range(6), num_workers=2).num_workers == 2


def test_shared_loads_once_and_tells_loads_apart(play, told):
    play(
        """
        import os
        def load(name):
            with (folder / "loads").open("a") as file:
                file.write(name)
            return name
        both = [tacit.load_once(lambda: load("a")), tacit.load_once(lambda: load("b"))]
        both += [tacit.load_once(lambda: load(name)) for name in "cd"]
        tables = tacit.load_once(dict)
        tables[rank] = 1
        session = attach()
        for _ in range(6): step()
        session.close()
        tell([both, len(tables)])
        """
    )
    assert told() == [[["a", "b", "c", "d"], 3]] * 3


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("torch.distributed.init_process_group('gloo')", r"tacit\.rank\(\) and tacit\.size\(\)"),
        ("torch.distributed.get_rank()", r"call tacit\.rank\(\)"),
        ("nn.parallel.DistributedDataParallel(model)", r"tacit\.attach\(model, optimizer, tacit\.AllReduce\(\)\)"),
        ("torch.utils.data.DistributedSampler(range(4))", r"call tacit\.size\(\)"),
    ],
)
def test_process_groups_are_refused_with_the_line_to_change(play, tmp_path, line, instead):
    with pytest.raises(MisplacedCall, match=instead) as caught:
        play(f"{line}\nsession = attach()")
    assert f"train.py, line {line_of(line, tmp_path / 'train.py')}: " in str(caught.value)
    assert not torch.distributed.is_initialized()


def test_measured_steps_take_their_own_time(play):
    cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=1e6), speed={1: 1e-3})
    run = play("session = attach()\nfor _ in range(6): step()\nsession.close()", cluster=cluster, measured=True)
    lengths = [sum(e.time_s - e.start_s for e in run.trace.of(COMPUTE) if e.rank == rank) for rank in range(2)]
    assert 0 < 10 * lengths[0] < lengths[1] < 1e5
    assert run.config["cluster"]["compute"] == "measured"


# How it can end.


def test_an_error_names_the_worker_and_the_scripts_own_lines(play, tmp_path):
    with pytest.raises(
        ScriptFailed, match="the script of worker 1 raised ZeroDivisionError: division by zero"
    ) as caught:
        play(
            """
            def fail():
                return 1 / 0
            session = attach()
            for _ in range(6):
                step()
                if rank == 1 and session.step == 4: fail()
            """
        )
    number = line_of("return 1 / 0", tmp_path / "train.py")
    assert caught.value.lines[-1] == f"  train.py, line {number}, in fail\n    return 1 / 0"
    assert all("site-packages" not in line for line in caught.value.lines)
    run = caught.value.run
    assert run.status.startswith("failed: the script of worker 1")
    assert {event.rank for event in run.trace} == {0, 1, 2}
    assert run.history


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_leaving_with_exit_code_0_is_an_end_like_any_other(play, code):
    run = play(
        f"session = attach()\nfor _ in range(6): step()\nsession.close()\nsys.exit({code})\nraise AssertionError"
    )
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit(3)", r"the script of worker 0 called sys\.exit\(3\)"),
        ("pass", r"ended without tacit\.attach on any worker"),
        ("session = attach()\nstep()", r"worker 1 ended after step 1 without session\.close\(\)"),
        ("with attach() as session:\n    sys.exit()", r"called sys\.exit\(\) inside its session"),
    ],
)
def test_an_end_too_early_is_an_error_that_says_what_to_add(play, text, message):
    with pytest.raises(ScriptFailed, match=message) as caught:
        play(text)
    assert caught.value.run is not None


def test_a_rank_that_never_attaches_is_a_deadlock_that_names_it(play):
    with pytest.raises(
        Deadlock, match=r"worker 0 waits in tacit\.attach for worker 1 \(train.py, line \d+: .*attach\("
    ):
        play("if rank != 1:\n    session = attach()")


def test_a_call_that_only_one_rank_makes_is_a_deadlock_that_says_so(play, tmp_path):
    with pytest.raises(
        Deadlock, match=r"worker 0 waits in an? .* for workers 1, 2 \(train.py, line \d+: with session"
    ) as caught:
        play(
            """
            session = attach(tacit.AllReduce())
            step()
            if rank == 0:
                with session.reported_model(): pass
            step()
            """
        )
    assert f"(train.py, line {line_of('reported_model', tmp_path / 'train.py')}: with session" in str(caught.value)


@pytest.mark.parametrize("host", ["greenlet", "thread"])
def test_an_interruption_keeps_what_there_is(play, host):
    with pytest.raises(Interrupted) as caught:
        play(
            "session = attach()\nfor n in range(6):\n    step()\n    if rank == 1 and n == 3: raise KeyboardInterrupt",
            host=host,
        )
    assert caught.value.run.status == "interrupted"
    assert len(caught.value.run.trace.of(COMPUTE)) >= 10


def test_a_crash_ends_the_run_with_peer_lost(play):
    cluster = tacit.Cluster(workers=3, compute=tacit.Constant(mean_s=1.0), faults=[tacit.Crash(rank=1, at_s=2.5)])
    with pytest.raises(PeerLost, match="worker 1 was lost at 2.5 s") as caught:
        play("session = attach()\nfor _ in range(6): step()\nsession.close()", cluster=cluster)
    assert max(e.step for e in caught.value.run.trace.of(COMPUTE) if e.rank == 1) == 2


def test_a_script_may_survive_the_loss_of_another(play, told):
    cluster = tacit.Cluster(workers=3, compute=tacit.Constant(mean_s=1.0), faults=[tacit.Crash(rank=2, at_s=2.5)])
    run = play(
        """
        session = attach()
        try:
            for _ in range(6): step()
        except tacit.PeerLost as error:
            tell(error.rank)
        """,
        cluster=cluster,
    )
    assert told() == [2, 2]
    assert run.status.startswith("failed: worker 2 was lost")


def test_communicating_inside_backward_is_refused(play):
    with pytest.raises(MisplacedCall, match="inside backward"):
        play("session = attach()\nmodel.weight.register_hook(lambda g: optimizer.step())\nstep()")


def test_calls_that_differ_are_a_disagreement_of_the_ranks_that_make_them(play):
    why = (
        r"disagree on the call that all ranks make together: an exchange of states on rank 2, a mean of the models on ranks "
        r"0, 1; all ranks must make the same calls in the same order\."
    )
    with pytest.raises(tacit.Disagreement, match=why):
        play(
            """
            session = attach()
            if rank == 2:
                session.checkpoint(folder / "kept")
            with session.reported_model():
                pass
            """
        )


def test_different_settings_are_a_disagreement(play):
    with pytest.raises(tacit.Disagreement, match="steps is 7 on rank 1, 6 on rank 0"):
        play("session = attach(steps=7 if rank == 1 else 6)")


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), ("def", "line 1 is not Python")])
def test_what_is_no_script_is_refused(tmp_path, text, message):
    path = tmp_path / "train.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TacitError, match=message):
        simulate_script(path)


def test_the_process_is_left_as_it_was(play):
    before = sys.modules["__main__"], sys.argv, list(sys.path), sys.stdout, dict(os.environ), torch.get_num_threads()
    play("torch.set_num_threads(1)\nsession = attach()\nfor _ in range(6): step()\nsession.close()")
    assert before == (
        sys.modules["__main__"],
        sys.argv,
        sys.path,
        sys.stdout,
        dict(os.environ),
        torch.get_num_threads(),
    )
    assert tacit.session.script_context() is None
