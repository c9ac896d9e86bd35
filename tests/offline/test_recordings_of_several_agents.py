"""Runs of several agents are recorded with the rewards and actions of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
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
