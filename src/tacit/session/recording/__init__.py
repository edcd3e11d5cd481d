"""The record of a session: losses and evaluations of a worker, its log, and metrics."""
