"""Plans beside real runs; see ``benchmarks.plan.__main__``."""
