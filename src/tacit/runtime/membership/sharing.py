"""Results and states that one member gives to the others through their new group, read without unpickling."""

from __future__ import annotations

import io
from typing import Any

import torch

from tacit.runtime.membership.calls import CallRecord, Wait
from tacit.runtime.process_groups import Group


def share(group: Group, given: bytes, source: int, wait: Wait) -> bytes:
    """Return what the seat ``source`` gives."""
    place = group.ranks.index(source)
    length = torch.tensor([len(given)])
    wait(group.broadcast(length, place))
    is_mine = place == group.place
    data = (
        torch.frombuffer(bytearray(given), dtype=torch.uint8)
        if is_mine
        else torch.empty(int(length), dtype=torch.uint8)
    )
    wait(group.broadcast(data, place))
    return given if is_mine else data.numpy().tobytes()


def share_result(group: Group, record: CallRecord, number: int, donor: int, me: int, wait: Wait) -> None:
    """Give the result of a call to the members that lack it."""
    given = b""
    if donor == me:
        call = record.ended[number]
        given = packed({"seats": list(call.seats), "tensors": [tensor.cpu() for tensor in call.result()]})
    received = share(group, given, donor, wait)
    if number in record.under_way:
        stored = unpacked(received)
        call = record.under_way[number]
        call.seats = tuple(stored["seats"])
        call.take(stored["tensors"])
        record.end(call)


def packed(value: Any) -> bytes:
    """Return tables of tensors, numbers and text as bytes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the value in ``data``; ``weights_only`` never executes code."""
    return torch.load(io.BytesIO(data), weights_only=True)
