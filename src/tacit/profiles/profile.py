"""``tacit.Profile``: a cluster and a training job as they were measured, or as a user describes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from tacit.cluster.cluster import Cluster
from tacit.errors import FolderExists, TacitError, naming, require
from tacit.profiles.combined import combined
from tacit.profiles.measurement import Measurement
from tacit.profiles.subset import fields_of_ranks
from tacit.record.files import replacing_folder, toml_text
from tacit.record.run import Run
from tacit.record.step_times import moved_to_files
from tacit.registry.tables import Table, check_keys, checked, cluster_fields, read_toml
from tacit.registry.units import SHORT_NAMES, with_units

FILE: Final = "profile.toml"
_COMMENT: Final = """The profile of a cluster and of a training job. Edit it as you like.
[cluster] is what tacit simulate --cluster reads; step times are in the files that it names."""
_JOB: Final[Mapping[str, Any]] = {
    "parameters": int,
    "parameter_bytes": int,
    "dtype": str,
    "batch": float,
    "optimizer": str,
    "strategy": str,
    "steps": int,
    "backend": str,
    "noise_scale": float,
    "heterogeneity": float,
}
_BY_RANK: Final = ("peak_memory_bytes", "memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Profile(Cluster):
    """A cluster and the job that was measured on it: what a prediction needs.

    It has all fields of ``Cluster``, measured or given by hand, and facts about the job. ``cluster()`` returns the
    cluster to simulate. Abandoned steps end as on real processes (``cancel="step_end"``), and a server runs on the host
    of rank 0, as in ``tacit train``.

    - ``parameters``, ``parameter_bytes``, ``dtype``: the model's size, and the type in which it is sent.
    - ``batch``: samples per worker and step. ``optimizer``: as text.
    - ``strategy``, ``steps``: what the probed script itself asks for.
    - ``backend``: the library of the collectives, "gloo" or "nccl".
    - ``noise_scale``: samples in a batch whose gradient is as long as its noise (arXiv 1812.06162), early in the run;
      in batches of one worker if ``batch`` is not known.
    - ``heterogeneity``: by how much the gradient of one worker's data differs from that of all data, as a share of the
      latter; None if the difference is lost in the noise, as that of shuffled data is.
    - ``peak_memory_bytes``, ``memory_bytes``: the largest memory that each rank used, without that of a strategy, and
      what its machine has.
    - ``warnings``: sentences about what makes predictions from this profile uncertain.
    """

    cancel: str = "step_end"
    server: str = "rank0"
    parameters: int | None = None
    parameter_bytes: int | None = None
    dtype: str | None = None
    batch: float | None = None
    optimizer: str | None = None
    strategy: str | None = None
    steps: int | None = None
    backend: str | None = None
    noise_scale: float | None = None
    heterogeneity: float | None = None
    peak_memory_bytes: Mapping[int, int] = field(default_factory=dict)
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, *runs: Run | str | os.PathLike[str]) -> Profile:
        """Return the profile of one or several runs on real processes, or of their folders.

        Step times come from all runs. Rounds and work in hooks are those of the strategies that ran: pass a run of
        ``AllReduce`` and one of each compressor of interest to predict compressed strategies. All runs must have the
        same workers and the same model.
        """
        return cls(**combined([Measurement.of(run if isinstance(run, Run) else Run.load(run)) for run in runs]))

    def cluster(self, **changes: Any) -> Cluster:
        """Return the cluster to simulate; ``changes`` replace fields: ``profile.cluster(latency_s=0.01)``."""
        return Cluster(**{**{one.name: getattr(self, one.name) for one in fields(Cluster)}, **changes})

    def of_ranks(self, ranks: Sequence[int]) -> Profile:
        """Return the profile of some of the workers, numbered from 0: ``profile.of_ranks([0, 1, 2])``."""
        return replace(self, **fields_of_ranks(self, ranks))

    def mean_step_s(self, rank: int) -> float:
        """Return the mean time of a step of worker ``rank``."""
        return self.delay(rank).expected_s * self.slowdown(rank) / self.speed.get(rank, 1.0)

    def table(self) -> Table:
        """Return the profile as the tables of profile.toml: warnings, the job, and the cluster."""
        job = {name: value for name in _JOB if (value := getattr(self, name)) is not None}
        for name in _BY_RANK:
            if by_rank := getattr(self, name):
                job[name] = {str(rank): value for rank, value in by_rank.items()}
        return {"warnings": list(self.warnings), "job": job, "cluster": self.cluster().table()}

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write profile.toml and the files of step times into ``folder``, and return its path."""
        target = Path(folder)
        if (target / FILE).exists() and not overwrite:
            raise FolderExists(target, "choose another name, or pass overwrite=True (--force on the command line).")
        with replacing_folder(target, last=FILE) as part:
            (part / FILE).write_text(toml_text(moved_to_files(self.table(), part), comment=_COMMENT), encoding="utf-8")
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read the profile of a folder that ``save`` wrote, of a TOML file, or of the folder of a real run."""
        source = Path(path)
        if source.is_dir():
            if not (source / FILE).exists() and (source / "run.json").exists():
                return cls.of(source)
            source = source / FILE
        if not source.exists():
            raise TacitError(
                f"{path} is not a profile: there is no {source.name}. Give a folder of tacit probe, the folder of a "
                f"run on real processes, or a TOML file with a table [cluster]."
            )
        table = read_toml(source, "profile")
        with naming(source):
            return profile_of_table(table, source)


def profile_of_table(table: Table, source: Path) -> Profile:
    """Return the profile of the tables in a TOML file, or of ``Profile.table``. source: for messages."""
    of_cluster = [*(one.name for one in fields(Cluster)), *SHORT_NAMES]
    misplaced = next((key for key in table if key in of_cluster), None)
    require(misplaced is None, f"{source}: unknown key {misplaced!r}; write it beneath a line [cluster].")
    check_keys(table, ("warnings", "job", "cluster"), f"{source}")
    job = checked("job", table.get("job", {}), dict)
    check_keys(job, (*_JOB, *_BY_RANK), f"{source}, table [job]")
    given = with_units(checked("cluster", table.get("cluster", {}), dict))
    check_keys(given, of_cluster, f"{source}, table [cluster]")
    require("workers" in given, f"{source}, table [cluster]: workers is missing; write workers = 4.")
    by_rank: dict[str, Any] = {
        name: {int(rank): value for rank, value in checked(name, job.pop(name, {}), dict).items()} for name in _BY_RANK
    }
    return Profile(
        **cluster_fields(given),
        **{name: checked(name, value, _JOB[name]) for name, value in job.items()},
        **by_rank,
        warnings=tuple(checked("warnings", table.get("warnings", []), list)),
    )
