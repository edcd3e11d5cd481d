"""numpy's numbers are accepted wherever a number is: the same object, notation, file and digest as with Python's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import theory, workloads
from tacit.compare.workloads import compare
from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.registry import parse
from tacit.simulation.scripts.run import simulate_script
from tests.test_registry import EXAMPLES

pytestmark = pytest.mark.slow

KINDS: list[tuple[Callable[[int], Any], Callable[[float], Any]]] = [
    (np.int64, np.float64),
    (np.int32, np.float64),
    (np.uint16, np.float32),
]


def as_numpy(value: Any, whole: Callable[[int], Any], real: Callable[[float], Any]) -> Any:
    """Return ``value`` with numpy's numbers in place of Python's, where they hold the same."""
    match value:
        case bool():
            return np.bool_(value)
        case int():
            return whole(value) if value >= 0 and int(whole(value % 2**16)) == value else np.int64(value)
        case float():
            return (
                real(value)
                if np.isinf(value) or (abs(value) < 1e30 and float(real(value)) == value)
                else np.float64(value)
            )
        case list() | tuple():
            return type(value)(as_numpy(item, whole, real) for item in value)
        case dict():
            return {as_numpy(k, whole, real): as_numpy(v, whole, real) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return type(value)(**{name: as_numpy(item, whole, real) for name, item in given.items()})
    return value


@pytest.mark.parametrize(("whole", "real"), KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("thing", EXAMPLES, ids=str)
def test_whatever_has_a_name_is_the_same_with_numpys_numbers(thing: Any, whole: Any, real: Any) -> None:
    same = as_numpy(thing, whole, real)
    assert same == thing
    assert (str(same), repr(same)) == (str(thing), repr(thing))
    assert parse(str(same)) == thing


def settings(number: Callable[[Any], Any]) -> dict[str, Any]:
    cluster = tacit.Cluster(
        workers=number(3),
        compute=tacit.ShiftedExponential(shift_s=number(0.01), tail_mean_s=number(0.02)),
        latency_s=number(0.001),
        bandwidth_bytes_per_s=number(1e6),
        speed={number(1): number(0.5)},
        faults=[tacit.Slow(rank=number(0), factor=number(2.0), at_s=number(0.1), for_s=number(0.2))],
    )
    return {
        "cluster": cluster,
        "steps": number(30),
        "seed": number(4),
        "lr": number(0.125),
        "momentum": number(0.5),
        "weight_decay": number(0.25),
        "evaluate_every": number(10),
        "schedule": tacit.Cosine(warmup_steps=number(5)),
    }


def test_a_cluster_takes_numpys_arrays() -> None:
    """A 0-dimensional array is a number, any other a list."""
    given, plain_values = (
        tacit.Cluster(
            workers=kind(2),
            compute=tacit.Recorded(times_s=kind([0.25, 0.5])),
            latency_s=kind(0.125),
            bandwidth_bytes_per_s=kind(1e6),
            hosts=kind([0, 0]),
            faults=[tacit.Partition(ranks=kind([1]), at_s=kind(1.0))],
        )
        for kind in (np.asarray, plain)
    )
    assert given == plain_values and str(given) == str(plain_values) and given.table() == plain_values.table()
    assert tacit.Cluster(faults=np.array([])).table() == tacit.Cluster().table()
    run = tacit.simulate(workloads.quadratic(dimension=2), tacit.AllReduce(), cluster=given, steps=2)
    assert run.config["cluster"]["compute"] == "Recorded(times_s=[0.25, 0.5])"


def plain(number: Any) -> Any:
    return number


def numpys(number: Any) -> Any:
    return as_numpy(number, np.int64, np.float64)


STRATEGIES: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "period": lambda n: tacit.LocalSGD(period=tacit.Every(n(4)), outer=tacit.OuterSGD(lr=n(0.5)), warmup_steps=n(2)),
    "compressor": lambda n: tacit.CompressedGradient(compressor=tacit.TopK(fraction=n(0.25))),
    "swarm": lambda n: tacit.SwarmSGD(
        local_steps=n(3), compressor=tacit.Lattice(bits=n(8)), topology=tacit.RandomRegular(degree=n(2))
    ),
    "server": lambda n: tacit.KAsync(k=n(2), rate=tacit.StalenessRate(c=n(0.125))),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_run_is_the_same_with_numpys_numbers(strategy: Any, tmp_path: Path) -> None:
    runs = []
    for number in (plain, numpys):
        workload = workloads.quadratic(dimension=number(5), condition=number(4.0), noise=number(0.5))
        runs.append(tacit.simulate(workload, strategy(number), **settings(number)))
        runs[-1].save(tmp_path / number.__name__)
    first, second = runs
    assert first.digest == second.digest
    assert first.config == second.config
    files = [(tmp_path / number.__name__ / "run.toml").read_text() for number in (plain, numpys)]
    assert files[0] == files[1]
    assert tacit.Run.load(tmp_path / "numpys").digest == first.digest


def test_a_schedule_of_ones_own_may_return_numpys_numbers() -> None:
    digests = {
        tacit.simulate(
            workloads.digits(),
            tacit.LocalSGD(period=tacit.Every(2)),
            cluster=tacit.Cluster(workers=2),
            steps=6,
            schedule=lambda step, number=number: number(0.5),
        ).digest
        for number in (float, np.float64, np.float32)
    }
    assert len(digests) == 1


def test_comparisons_take_numpys_numbers() -> None:
    def digests(number: Callable[[Any], Any]) -> list[str]:
        comparison = compare(
            workloads.quadratic(dimension=3),
            [tacit.AllReduce()],
            cluster=tacit.Cluster(workers=2),
            steps=number(5),
            lr=number(0.25),
            seeds=[number(0), number(1)],
        ).comparison
        assert comparison is not None
        return [run.digest for entry in comparison.entries for run in entry.runs]

    assert digests(plain) == digests(numpys)


SCRIPT = """
import numpy as np, torch, tacit
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every({n}(2))), steps={n}(4), seed={n}(5)) as session:
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        session.observe({f}(loss.item()))
        optimizer.step()
"""


def test_a_session_takes_numpys_numbers(tmp_path: Path) -> None:
    digests = []
    for whole, real in (("int", "float"), ("np.int64", "np.float64")):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(n=whole, f=real))
        seed = eval(whole, {"np": np})(3)
        digests.append(simulate_script(path, cluster=tacit.Cluster(workers=2), seed=seed).digest)
    assert digests[0] == digests[1]


FORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "update_time": lambda n: theory.update_time(
        "k-async", k=n(2), workers=n(4), compute=tacit.Exponential(mean_s=n(0.5)), speed={n(1): n(0.5)}
    ),
    "update_time_bounds": lambda n: theory.update_time_bounds("k-sync", k=n(2), workers=n(4), compute=tacit.Pareto()),
    "speed_up": lambda n: theory.speed_up(
        "k-sync", over="k-async", k=n(2), workers=n(4), compute=tacit.Exponential(mean_s=n(0.5))
    ),
    "order_statistic": lambda n: theory.order_statistic(tacit.Exponential(), k=n(2), workers=n(4)),
    "round_time": lambda n: theory.round_time(period=n(3), workers=n(4), compute=tacit.Exponential()),
    "fresh_probability": lambda n: theory.fresh_probability(
        "k-async", k=n(1), workers=n(4), compute=tacit.Exponential()
    ),
    "p0": lambda n: theory.p0("k-async", k=n(1), workers=n(4), compute=tacit.Exponential()),
    "adasync_k": lambda n: theory.adasync_k("quadratic", n(1), n(8), n(0.25)),
    "ef21_step_size": lambda n: theory.ef21_step_size(
        smoothness=n(2.0), mean_smoothness=n(3.0), contraction=n(0.25), pl=n(0.5)
    ),
    "lupa_period": lambda n: theory.lupa_period(steps=n(1000), workers=n(4), batch_size=n(8)),
    "largest_step_size": lambda n: theory.largest_step_size(
        "k-sync",
        k=n(2),
        objective=theory.Objective(gap=n(1.0), smoothness=n(1.0), variance=n(0.5)),
        batch_size=n(8),
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_closed_forms_take_numpys_numbers(form: Any) -> None:
    assert repr(form(numpys)) == repr(form(plain))


@pytest.mark.parametrize(
    "topology", [tacit.Ring(), tacit.Hypercube(), tacit.OnePeer(), tacit.RandomRegular(degree=3)], ids=str
)
def test_topologies_answer_to_numpys_sizes_and_rounds(topology: tacit.Topology) -> None:
    fresh = parse(str(topology))
    assert repr(fresh.neighbours(np.int64(8), np.int64(1))) == repr(topology.neighbours(8, 1))
    assert torch.equal(fresh.mixing(np.int32(8), np.int32(3)), topology.mixing(8, 3))
    assert repr(theory.GraphTheory(fresh, np.int64(8))) == repr(theory.GraphTheory(topology, 8))


@dataclasses.dataclass(frozen=True)
class Numbers(Message):
    whole: int
    real: float
    flag: bool


def test_messages_take_numpys_numbers() -> None:
    own = Numbers(7, 0.25, True)
    for message in (
        Numbers(np.int64(7), np.float32(0.25), np.bool_(True)),
        Numbers(np.uint8(7), np.float64(0.25), np.True_),
    ):
        assert message.size_bytes == own.size_bytes == len(message.pack())
        assert message.pack() == own.pack() and unpack(message.pack()) == own


def test_what_is_no_number_is_still_refused() -> None:
    with pytest.raises(ValueError, match="workers=2.5 must be a whole number"):
        tacit.Cluster(workers=np.float64(2.5))  # type: ignore[arg-type]
    assert torch.equal(torch.tensor(tacit.Recorded(times_s=np.array([0.5, 1.5])).times_s), torch.tensor([0.5, 1.5]))
