"""Finders: which learning rate, which optimizer, which agent to begin with, by short training that is undone."""

from etude.tuning.finding.lr_finder import LRFinder, LRSuggestion
from etude.tuning.finding.parallel import OptFinder, ParallelFinder

__all__ = ["LRFinder", "LRSuggestion", "OptFinder", "ParallelFinder"]
