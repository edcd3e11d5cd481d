"""Predicted step times beside measured ones; see ``benchmarks.fidelity.__main__``."""
