"""Runs that are stepped together have the numbers of each run alone, on every engine, and are compiled once."""

from __future__ import annotations

import dataclasses

import pytest
from cases import BOTH, variants_but
from run_cases import DQN_TINY, PPO_TINY, SAC_TINY, differences

from etude import Run
from etude.base.events import Collected
from etude.run.group import RunGroup

SEEDS = (3, 4)
RUNS = {
    "ppo": ("CartPole-v1", dataclasses.replace(PPO_TINY, normalize_observation=True), 4, 256),
    "dqn": ("CartPole-v1", DQN_TINY, 1, 128),
    "sac": ("Pendulum-v1", SAC_TINY, 2, 64),
}


def made(engine_name, algorithm, seed):
    env, config, environments, _ = RUNS[algorithm]
    return Run(algorithm, env, config=config, environments=environments, seed=seed, engine=engine_name)


def plain(state):
    progress = {name: value for name, value in state["progress"].items() if name != "seconds"}
    return {**{name: part for name, part in state.items() if name != "description"}, "progress": progress}


@pytest.mark.parametrize("algorithm", variants_but({"ppo": BOTH}, RUNS))
def test_each_run_of_a_group_has_the_state_and_the_episodes_of_its_run_alone(algorithm, engine_name):
    steps = RUNS[algorithm][-1]
    group = RunGroup([made(engine_name, algorithm, seed) for seed in SEEDS])
    assert group.apart is None
    episodes = {i: [] for i in range(len(SEEDS))}
    for i, event in group.steps_until(steps):
        episodes[i] += event.episodes if isinstance(event, Collected) else ()
    assert not group.errors
    for i, seed in enumerate(SEEDS):
        with made(engine_name, algorithm, seed) as run:
            ended = [end for event in run.steps(steps) if isinstance(event, Collected) for end in event.episodes]
            assert ended == episodes[i]
            assert differences(plain(run.state()), plain(group.runs[i].state())) == []
    if engine_name != "torch":
        assert len({run.engine._learning for run in group.runs}) == 1 and group.runs[0].engine.traces > 0
    group.close()
