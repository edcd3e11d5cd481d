"""``session.reported_model()``: a context that warns when it is not entered."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tacit


@pytest.fixture
def session() -> Iterator[tacit.Session]:
    model = nn.Linear(3, 1)
    with tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.AllReduce()) as session:
        yield session


def test_reported_model_without_with_warns_and_names_with(session: tacit.Session) -> None:
    with pytest.warns(UserWarning, match=r"write `with session\.reported_model\(\):`") as caught:
        session.reported_model()
    assert caught[0].filename == __file__


def test_reported_model_in_with_does_not_warn_and_yields_the_model(session: tacit.Session) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with session.reported_model() as model:
            assert isinstance(model, nn.Linear)


def test_errors_inside_reported_model_propagate_and_restore_the_model() -> None:
    model = nn.Linear(3, 1)
    own = model.weight.detach().clone()
    with tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.AllReduce()) as session:
        with pytest.raises(ZeroDivisionError), session.reported_model() as reported:
            nn.init.zeros_(next(reported.parameters()))
            raise ZeroDivisionError
        assert torch.equal(model.weight, own)


def test_reported_model_after_close_is_refused_on_entry() -> None:
    model = nn.Linear(3, 1)
    session = tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.AllReduce())
    session.close()
    with pytest.raises(tacit.MisplacedCall, match=r"reported_model\(\) after the session was closed"):
        session.reported_model().__enter__()
