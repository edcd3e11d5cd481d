"""Runs next to their plans: the causes of the difference, as a table and in a sentence, and both loss curves."""

from tacit.report.planned.causes import Cause, PlannedRun, planned_run

__all__ = ["Cause", "PlannedRun", "planned_run"]
