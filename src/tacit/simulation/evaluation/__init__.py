"""Evaluations of a simulated run: the reported model at chosen steps or times, and the results of the run."""

from tacit.simulation.evaluation.evaluator import Evaluator, Progress

__all__ = ["Evaluator", "Progress"]
