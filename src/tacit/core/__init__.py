"""The interface between strategies and the worlds that run them: strategy, worker, network, messages."""
