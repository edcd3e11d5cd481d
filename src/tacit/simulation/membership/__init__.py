"""Collective runs whose members change: workers are lost, and others join."""
