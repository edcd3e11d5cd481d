"""The ranks of the benchmark, one module per environment; see common."""
