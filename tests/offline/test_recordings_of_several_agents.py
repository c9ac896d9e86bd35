"""Runs of several agents are recorded with the rewards and actions of each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from test_recordings import Kept, assert_same_episodes, each_format

import etude
from etude.cli import main
from etude.networks import Mlp
from etude.offline import Reader, Writer, write


@each_format
def test_episodes_of_several_agents_pass_bit_for_bit(tmp_path, form):
    kept = Kept()
    run = etude.Run("ppo", "mpe2:simple_speaker_listener_v4", seed=1, engine="torch", environments=2,
                    network=Mlp((8,)), rollout_length=32, minibatch_size=32, epochs=1)  # fmt: skip
    run.train(256, [kept, Writer(tmp_path, form)])
    reader = Reader(tmp_path)
    assert_same_episodes(reader.episodes(), kept.episodes)
    assert list(reader.source.agents) == ["listener_0", "speaker_0"] and kept.episodes[0].reward.shape[1:] == (2,)
    assert np.isfinite(kept.episodes[0].reward).all()
    assert kept.episodes[0].extras["log_prob"].shape[1:] == (2,)


def test_etude_data_says_what_each_agent_earned_and_what_is_the_sum(tmp_path, capsys):
    episodes = etude.record("etude.examples.two_step_game:TwoStepGame", 2, seed=0).episodes
    rewards = [np.array([[1.0, -3.0]] * len(each.reward), np.float32) for each in episodes]
    own = tuple(replace(each, reward=reward) for each, reward in zip(episodes, rewards, strict=True))
    write(tmp_path / "game.jsonl", replace(etude.record("etude.examples.two_step_game:TwoStepGame", 2), episodes=own))
    assert main(["data", str(tmp_path / "game.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "returns       mean -4.0, standard deviation 0.0, the sum over all agents" in told
    assert "  agent_0     mean 2.0, " in told and "  agent_1     mean -6.0, " in told


@pytest.mark.parametrize("workers", [0, 2])
def test_extras_of_info_may_be_missing(tmp_path, workers):
    kept = Kept()
    with etude.Run(
        "ppo",
        "CartPole-v1",
        seed=1,
        engine="torch",
        environments=2,
        network=Mlp((8,)),
        rollout_length=32,
        workers=workers,
        execution=etude.Execution(keep_info=["absent"]),
    ) as run:
        run.train(128, [kept, Writer(tmp_path, "jsonl")])
    found = list(Reader(tmp_path).episodes())
    assert_same_episodes(found, kept.episodes)
    assert np.isnan(found[0].extras["info.absent"]).all()


class Unlike(ParallelEnv):
    """One agent steers by numbers, the other has three choices counted from 1, of which one is forbidden in turn."""

    metadata: ClassVar[dict] = {"name": "unlike"}
    possible_agents: ClassVar[list] = ["chooses", "steers"]

    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-2, 2, (2,)) if agent == "steers" and self.steered else spaces.Discrete(3, start=1)

    def __init__(self, steered):
        self.steered = steered

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, list(self.possible_agents)
        return self._seen()

    def _seen(self):
        allowed = {"action_mask": np.arange(3) != self.time % 3}
        infos = {agent: {} if agent == "steers" and self.steered else allowed for agent in self.agents}
        return {agent: np.full(1, self.time, np.float32) for agent in self.agents}, infos

    def step(self, actions):
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        assert actions["chooses"] != self.time % 3 + 1
        self.time += 1
        observations, infos = self._seen()
        ends = dict.fromkeys(self.agents, self.time == 6)
        return observations, dict.fromkeys(self.agents, 1.0), ends, dict.fromkeys(self.agents, False), infos


@pytest.mark.parametrize("steered", [False, True])
def test_random_actions_of_each_agent_are_in_its_space_and_allowed_by_its_mask(steered):
    data = etude.record(partial(Unlike, steered), 8, seed=1)
    chosen = np.concatenate([episode.action[:, 0] for episode in data.episodes])
    assert set(chosen) == {0, 1, 2} and len(chosen) == 48
    log_prob = np.concatenate([episode.extras["log_prob"] for episode in data.episodes])
    np.testing.assert_allclose(log_prob, np.log([[1 / 2, 1 / 4 if steered else 1 / 2]] * 48), rtol=1e-6)
