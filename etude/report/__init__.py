"""Reporters: what listens to the events of a run."""
