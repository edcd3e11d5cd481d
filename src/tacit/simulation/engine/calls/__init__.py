"""Calls of the gradient for many replicas: plain, recorded, captured and compiled."""
