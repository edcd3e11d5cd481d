"""Rendezvous: processes publish where they run, and choose address and backend accordingly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from tacit.errors import Disagreement, TacitError
from tacit.runtime.environment import Environment, address_towards, gpu, machine, own_address
from tacit.runtime.messaging.secret import SECRET_FILE, find_secret, fingerprint
from tacit.session.agreement import first_difference

_log: Final = logging.getLogger("tacit")


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Result of a rendezvous."""

    address: str  # the IP at which others reach this process
    is_local: bool  # all are on one machine, and none named a network interface
    backend: str  # of the strategy's groups
    hosts: tuple[int, ...]  # number of each rank's machine, in the order of their first ranks


def rendezvous(
    environment: Environment,
    *,
    device: torch.device,
    interface: str | None,
    waits_for_server: bool,
    settings: dict[str, str],
) -> Rendezvous:
    """Publish where this process runs, and wait for all workers and, if ``waits_for_server``, the server process.

    settings: what must be equal before processes connect to each other: strategies differ in how they do.
    """
    is_cuda = device.type == "cuda"
    if environment.has(f"place/{environment.rank}"):  # of an earlier life; this one may be refused, so it is kept
        _raise_if_different(settings, environment.gather("place", [0])[0], environment.rank)
    environment.publish("place", {**place(interface, gpu() if is_cuda else None), "settings": settings})
    if waits_for_server and environment.rank == 0:
        _log.info(
            "waiting for the server: tacit serve … --master %s --workers %d", environment.master, environment.size
        )
    places = environment.gather("place", range(environment.size + waits_for_server))
    check_secrets(places)
    for rank in range(environment.size):
        _raise_if_different(places[rank]["settings"], places[0], rank)
    is_local = are_local(places)
    machines = [place["machine"] for place in places[: environment.size]]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(machines))}
    gpus = [(place["machine"], place["gpu"]) for place in places]
    has_own_gpus = is_cuda and len(set(gpus)) == environment.size and dist.is_nccl_available()
    return Rendezvous(
        address="127.0.0.1" if is_local else _address_between_machines(environment, interface),
        is_local=is_local,
        backend="nccl" if has_own_gpus else "gloo",
        hosts=tuple(numbers[name] for name in machines),
    )


def _raise_if_different(settings: dict[str, str], first: dict[str, Any], rank: int) -> None:
    """Raise ``Disagreement`` with the first difference between the settings of ``rank`` and the place of rank 0."""
    if (difference := first_difference(settings, first["settings"])) is not None:
        raise Disagreement(*difference, rank, at_attach=True)


def place(interface: str | None, gpu: str | None = None) -> dict[str, Any]:
    """Return what a process publishes of the place where it runs, and a public trace of the secret that it has."""
    return {"machine": machine(), "gpu": gpu, "interface": interface, "secret": fingerprint(find_secret())}


def check_secrets(places: Sequence[dict[str, Any]]) -> None:
    """Raise if one of the processes has another secret than process 0, or none."""
    first = places[0]["secret"]
    others = [number for number, place in enumerate(places) if place["secret"] != first]
    if not others:
        return
    without = [number for number, place in enumerate(places) if place["secret"] is None]
    what = (
        f"process {without[0]} has no secret, and others have one"
        if without
        else f"process {others[0]} has another secret than process 0"
    )
    raise TacitError(
        f"{what}; set {SECRET_FILE} on every machine to a copy of the same file, or start all processes with "
        f"tacit launch."
    )


def are_local(places: Sequence[dict[str, Any]]) -> bool:
    """Whether all processes are on one machine, and none named a network interface."""
    return len({place["machine"] for place in places}) == 1 and not any(place["interface"] for place in places)


def _address_between_machines(environment: Environment, interface: str | None) -> str:
    """Return the IP at which others reach this process.

    A machine that reaches the master through loopback uses its address towards another machine.
    """
    own = own_address(interface)
    environment.publish("ip", own)  # "address" is that of an endpoint
    offered = [address for address in environment.gather("ip") if address is not None]
    if own is None and not offered:
        raise TacitError(
            "every machine reaches the master through loopback; name the network interface: "
            "tacit.attach(…, interface=…)."
        )
    return own or address_towards(offered[0])


def agree(environment: Environment, own: dict[str, Any]) -> None:
    """Raise ``Disagreement`` on every rank, with the first difference, unless the tables of all ranks are equal."""
    environment.publish("table", own)
    [first] = environment.gather("table", [0])
    environment.publish("verdict", first_difference(own, first))
    for rank, found in enumerate(environment.gather("verdict")):
        if found is not None:
            what, theirs, expected = found
            raise Disagreement(what, theirs, expected, rank, at_attach=True)


def compare_with_members(environment: Environment, own: dict[str, Any]) -> None:
    """Raise ``Disagreement`` on this process alone, which joins a run, if its table differs from that of the run."""
    [first] = environment.gather("table", [0])  # equal on all ranks, so that a life of rank 0 compares with its former
    difference = first_difference(own, first)
    if difference is not None:
        what, theirs, expected = difference
        raise Disagreement(what, theirs, expected, environment.rank, at_attach=True)
