"""Agents and environments to read, to run and to start from."""
