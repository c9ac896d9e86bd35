"""Rollouts: what collects steps of environments with the current weights."""

from etude.rollout.collector import Actor, Collector
from etude.rollout.in_process import InProcess

__all__ = ["Actor", "Collector", "InProcess"]
