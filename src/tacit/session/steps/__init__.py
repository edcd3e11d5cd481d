"""One optimizer step of an attached model: hooks, worker, optimizers, GradScaler."""
