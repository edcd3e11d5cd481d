"""A slice of fuzz/handlers.py, and what it has found."""

from __future__ import annotations

import torch

from fuzz import handlers


def test_handlers_refuse_wild_messages_and_keep_their_models_finite():
    torch.set_num_threads(1)
    tally = handlers.run(messages=8_000, seed=20_261_119)
    assert set(tally.given) == set(tally.refused) == {"server", "learner", "gossip"}
    assert min(tally.given.values()) > 1_000
