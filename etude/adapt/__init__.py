"""Hyperparameters that adjust themselves while a run goes on: signals, and the rules that follow them."""

from etude.adapt.rules import Adapt

__all__ = ["Adapt"]
