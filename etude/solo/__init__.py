"""Agents of one's own: a class that inherits `etude.RL` or `etude.RL_pytorch` gets everything else.

Put together from the parts of etude: an engine, a pool (ring x selector x view), a rollout, and the one loop.
"""

from etude.solo.agent import RL, RL_pytorch
from etude.solo.callbacks import Callback, LambdaCallback
from etude.solo.engines.user_agent import assign_param
from etude.solo.files import read_param
from etude.solo.settings import Options, Settings


def save(agent: RL, path: str) -> None:
    """`agent.save(path)`."""
    agent.save(path)


def restore(agent: RL, path: str) -> None:
    """`agent.restore(path)`."""
    agent.restore(path)


def save_param(agent: RL, path: str) -> None:
    """`agent.save_param(path)`."""
    agent.save_param(path)


restore_param = read_param

__all__ = [
    "RL", "Callback", "LambdaCallback", "Options", "RL_pytorch", "Settings", "assign_param",
    "restore", "restore_param", "save", "save_param",
]  # fmt: skip
