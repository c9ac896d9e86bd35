"""Runs of the user and from elsewhere, for the tests of trust."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.base.errors import UntrustedError
from etude.checkpoint.run_directory import RunDirectory
from etude.run import from_state

SOURCE = """
from pathlib import Path
with Path({canary!r}).open("a") as file:
    file.write("ran ")

from gymnasium.envs.classic_control import CartPoleEnv

def make(render_mode=None):
    return CartPoleEnv(render_mode=render_mode)

parallel_env = make
"""
CONFIG = etude.algorithms.DQNConfig(
    network=etude.Mlp((4,)), learning_starts=16, train_every=8, batch_size=8, buffer_size=100
)
COMMANDS = {
    "evaluate FILE": ["evaluate", "run/checkpoints/step_000000040.etude", "--episodes", "1"],
    "evaluate RUN": ["evaluate", "run", "--episodes", "1"],
    "evaluate the best": ["evaluate", "run", "--checkpoint", "best", "--episodes", "1"],
    "watch": ["watch", "run", "--video", "out.mp4", "--max-steps", "3"],
    "resume": ["resume", "run", "--steps", "48"],
}


def trained(env: str = "CartPole-v1", **more) -> etude.Run:
    """A run of 40 steps."""
    run = etude.Run("dqn", env, config=CONFIG, engine="torch", **more)
    run.train(40)
    return run


def described(state: dict, **changed) -> dict:
    return {**state, "description": {**state["description"], **changed}}


def sent(folder: Path, state: dict) -> Path:
    """A run directory from elsewhere."""
    directory = RunDirectory(folder / "run")
    directory.checkpoints.mkdir(parents=True)
    directory.save(40, state)
    directory.save_best(40, state)
    schedule = {"evaluate_every": None, "evaluate_episodes": 1, "target": None, "save_every": None}
    directory.write_config({"schedule": schedule})
    return directory.path


def refused(state: dict, **given) -> str:
    with pytest.raises(UntrustedError) as caught:
        from_state(state, **given)
    return str(caught.value)
