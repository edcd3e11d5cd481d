"""Workloads: model, loss, data and split, described by a call and opened when a run starts."""

from tacit.workloads.characters import text
from tacit.workloads.classification import cifar10, digits, images, mnist
from tacit.workloads.own_model import custom
from tacit.workloads.quadratics import quadratic
from tacit.workloads.regression import least_squares, logistic
from tacit.workloads.workload import Problem, Workload

__all__ = [
    "Problem",
    "Workload",
    "cifar10",
    "custom",
    "digits",
    "images",
    "least_squares",
    "logistic",
    "mnist",
    "quadratic",
    "text",
]
