"""Failures of real processes: liveness, causes, signals, time-outs and notices of long waits."""
