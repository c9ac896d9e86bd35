"""Runs: one agent trained on one environment, saved, loaded and gone on with."""

from etude.run.loading import from_state, load, resume, resumed
from etude.run.run import COMPONENTS, Run
from etude.training.schedule import Schedule

__all__ = ["COMPONENTS", "Run", "Schedule", "from_state", "load", "resume", "resumed"]
