"""tacit: distributed training that speaks only when it must."""

from tacit import workloads
from tacit.delays import Constant, Exponential, HyperExponential, LogNormal, Pareto, Recorded, ShiftedExponential, Spell
from tacit.errors import (
    BadData,
    BadMessage,
    Deadlock,
    Disagreement,
    FolderExists,
    Interrupted,
    MisplacedCall,
    NotFinite,
    PeerLost,
    RunError,
    ScriptFailed,
    TacitError,
    TimedOut,
)
from tacit.faults import Crash, Loss, Partition, Pause, Slow
from tacit.messages import Message
from tacit.network import SERVER
from tacit.outer import OuterAdam, OuterSGD, SlowMo
from tacit.periods import AdaCommPeriod, Every, LinearPeriod, LossPeriod, OneShot, PeriodList, VariancePeriod
from tacit.run import Run
from tacit.runtime.attach import attach
from tacit.schedules import Cosine, InverseTime, StepDecay
from tacit.session import Session, rank, shared, size
from tacit.simulation import Cluster, Link, simulate
from tacit.strategies import AllReduce, LocalSGD, Strategy

__version__ = "0.1.0"
__all__ = [
    "SERVER",
    "AdaCommPeriod",
    "AllReduce",
    "BadData",
    "BadMessage",
    "Cluster",
    "Constant",
    "Cosine",
    "Crash",
    "Deadlock",
    "Disagreement",
    "Every",
    "Exponential",
    "FolderExists",
    "HyperExponential",
    "Interrupted",
    "InverseTime",
    "LinearPeriod",
    "Link",
    "LocalSGD",
    "LogNormal",
    "Loss",
    "LossPeriod",
    "Message",
    "MisplacedCall",
    "NotFinite",
    "OneShot",
    "OuterAdam",
    "OuterSGD",
    "Pareto",
    "Partition",
    "Pause",
    "PeerLost",
    "PeriodList",
    "Recorded",
    "Run",
    "RunError",
    "ScriptFailed",
    "Session",
    "ShiftedExponential",
    "Slow",
    "SlowMo",
    "Spell",
    "StepDecay",
    "Strategy",
    "TacitError",
    "TimedOut",
    "VariancePeriod",
    "attach",
    "rank",
    "shared",
    "simulate",
    "size",
    "workloads",
]
