"""Renamed arguments, values and names of ``tacit``: the old ones work, with a warning that names the new ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.core.compatibility.deprecation import DEPRECATED


def attached(**settings: Any) -> tacit.Session:
    model = nn.Linear(3, 1)
    return tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.AllReduce(), **settings)


def test_rescue_is_rescue_folder(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"rescue= is deprecated .*; use rescue_folder=") as caught:
        session = attached(rescue=tmp_path)
    assert caught[0].filename == __file__
    assert session._end._options.rescue_folder == tmp_path
    session.close()


@pytest.mark.parametrize(("old", "new"), [("beside", "rank0"), ("apart", "process")])
def test_old_values_of_server_are_accepted(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f'server="{old}" is deprecated .*; use server="{new}"') as caught:
        attached(server=old).close()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("server", ["elsewhere", "remote", "rank1"])
@pytest.mark.filterwarnings("ignore:server=:DeprecationWarning")
def test_other_values_of_server_are_refused(server: str) -> None:
    with pytest.raises(ValueError, match="must be one of rank0, process"):
        attached(server=server)


def test_new_names_do_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = attached(rescue_folder=tmp_path, server="rank0")
        assert tacit.load_once(list) == [] and not session.server_is_process
        session.close()


def test_server_is_apart_is_server_is_process() -> None:
    with attached() as session, pytest.warns(DeprecationWarning, match=r"use session\.server_is_process"):
        assert session.server_is_apart is False


def test_shared_is_load_once() -> None:
    assert DEPRECATED["shared"] == "load_once"
    with pytest.warns(DeprecationWarning, match=r"tacit\.shared is deprecated .*; use tacit\.load_once"):
        assert tacit.shared is tacit.load_once
