"""Exported policies act as the evaluated ones do."""

import importlib.util

import numpy as np
import pytest
from export_cases import AGENTS, CASES

from etude.envs import make_environment


def load(folder):
    spec = importlib.util.spec_from_file_location("act", folder / "act.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs():
    made = {}

    def run(name):
        if name not in made:
            made[name] = CASES[name]()
            made[name].train(16)
        return made[name]

    yield run
    for each in made.values():
        each.close()


def same(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return np.array_equal(found, expected) and type(found) is type(expected)


def played(run, steps=40):
    """(observation, info, first) of an environment that takes random actions."""
    env = make_environment(run.environment).env.unwrapped
    for _ in range(steps // 7):
        observation, info = env.reset()
        first, over = True, False
        while not over:
            yield observation, info, first
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            first, over = False, terminated or truncated


@pytest.mark.parametrize("name", [name for name in CASES if "ma" not in name.split("_") and name not in AGENTS])
def test_numpy_acts_as_evaluated(runs, tmp_path, name):
    run = runs(name)
    act = load(run.export(tmp_path / "out"))
    for observation, info, first in played(run):
        expected = run.act(observation, info, first=first)
        assert same(act.act(observation, info.get("action_mask"), first), expected)


@pytest.mark.parametrize("name", AGENTS)
def test_each_agent_of_several_acts_in_numpy_as_it_does_among_all(runs, tmp_path, name):
    run = runs(name)
    path = run.export(tmp_path / "out")
    env = make_environment(run.environment).env.env
    acts = {agent: load(path / agent) for agent in env.possible_agents}
    for seed in range(3):
        observations, _ = env.reset(seed=seed)
        first = True
        while env.agents:
            expected = run.act(observations, {}, first=first)
            for agent, observation in observations.items():
                assert same(acts[agent].act(observation), expected[agent])
            observations, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            first = False
