"""The command line: `etude train dqn CartPole-v1`."""

from __future__ import annotations


def main() -> None:
    raise SystemExit("etude: the command line is not there yet")
