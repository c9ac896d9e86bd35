"""First signs that an episode does not follow from its seed and its actions."""

import random

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from worlds import Counter, Scripted

from etude.envs import LoopEnvironments


def told(make, steps=6):
    """What is told of two environments after some steps, with one call for all of it, and none left."""
    environments = LoopEnvironments(make, np.arange(2), 0, name="World")
    environments.reset()
    for _ in range(steps):
        environments.step(np.zeros(2, np.int64))
    notes = environments.warnings()
    assert environments.warnings() == []
    return notes


def drawing(draw):
    return lambda: Scripted(step=lambda t: (np.zeros(2, np.float32), float(draw()), False, False, {}))


def seeding():
    def reset(seed):
        random.seed(seed)
        return np.zeros(2, np.float32), {}

    return Scripted(reset=reset)


@pytest.mark.parametrize(
    ("make", "name"),
    [(drawing(random.random), "random"), (drawing(np.random.rand), "numpy.random"), (seeding, "random")],
)
def test_who_moves_a_generator_that_all_share_is_told_of_it(make, name):
    (note,) = told(make)
    assert note.startswith(f"World: It draws from or seeds a global generator ({name})")
    assert "self.np_random" in note


@pytest.mark.parametrize(
    ("wrap", "setting"),
    [
        (wrappers.NormalizeObservation, "normalize_observation=True"),
        (lambda env: wrappers.TimeLimit(wrappers.NormalizeReward(env), 9), "normalize_reward=True"),
    ],
)
def test_a_wrapper_with_running_statistics_is_named_with_what_to_set_instead(wrap, setting):
    (note,) = told(lambda: wrap(Counter()))
    assert "running statistics from episode to episode" in note
    assert setting in note


def frozen():
    env = wrappers.NormalizeObservation(Counter())
    env.update_running_mean = False
    return env


@pytest.mark.parametrize(
    "make",
    [
        Counter,
        frozen,
        lambda: wrappers.RecordEpisodeStatistics(Counter()),
        lambda: wrappers.TimeLimit(Counter(), 4),
        lambda: gym.make("CartPole-v1"),
        drawing(np.random.default_rng(1).random),
    ],
)
def test_nothing_is_told_of_environments_that_keep_to_themselves(make):
    assert told(make) == []


def test_a_generator_that_is_moved_in_the_second_step_is_told_of():
    def step(t):
        return np.zeros(2, np.float32), random.random() if t == 2 else 0.0, False, False, {}

    assert "random" in "".join(told(lambda: Scripted(step=step), steps=2))


def test_only_the_first_calls_are_watched():
    environments = LoopEnvironments(Counter, np.arange(2), 0)
    for _ in range(3):
        environments.reset()
        for _ in range(3):
            environments.step(np.zeros(2, np.int64))
    watched = [*environments._step_functions, *environments._reset_functions]
    assert all(function.__func__ in (Counter.step, Counter.reset) for function in watched)
