"""Episodes that are put together step by step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from recordings import SPACES

import etude
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Spaces
from etude.offline import Builder, Reader, Writer


def test_an_external_simulator_is_recorded_step_by_step(tmp_path):
    env, lengths = gym.make("CartPole-v1"), []
    spaces = Spaces(env.observation_space, env.action_space)
    builder = Builder(spaces, "CartPole-v1", Writer(tmp_path, "jsonl"))
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for t in range(8 + seed):
            following, reward, terminated, truncated, _ = env.step(t % 2)
            builder.add(observation, t % 2, reward, log_prob=np.log(0.5))
            observation = following
        builder.end(observation, truncated=True)
        lengths.append(8 + seed)
    builder._output.close()
    reader = Reader(tmp_path)
    found = list(reader.episodes())
    assert [len(each.reward) for each in found] == lengths and found[0].extras["log_prob"].dtype == np.float32
    assert reader.environment == "CartPole-v1" and all(each.truncated and not each.terminated for each in found)
    np.testing.assert_array_equal(found[0].action, np.arange(8) % 2)
    etude.Run("bc", "CartPole-v1", data=tmp_path, engine="torch", batch_size=8).train(2)


def test_several_episodes_may_go_on_at_a_time():
    builder = Builder(SPACES["discrete"])
    for t in range(3):
        for name in ("a", "b"):
            builder.add([ord(name), t], t - 1, t, episode=name)
    builder.end([0, 3], terminated=True, episode="b")
    builder.drop("a")
    (found,) = builder.dataset().episodes
    assert found.observation.tolist() == [[98, 0], [98, 1], [98, 2], [0, 3]] and found.action.tolist() == [0, 1, 2]


GOOD = {"observation": [0.0, 1.0], "action": 1, "reward": 1.0, "log_prob": 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation": [0.0, 1.0, 2.0]}, r"observation = \[0.0, 1.0, 2.0\]; expected finite numbers of Box"),
        ({"observation": [0.0, np.nan]}, "observation = .*expected finite numbers"),
        ({"action": 4}, r"action = 4; expected a value of Discrete\(5, start=-1\)"),
        ({"action": 0.5}, "action = 0.5; expected finite numbers of Discrete"),
        ({"reward": np.inf}, "reward = inf; expected a finite number"),
        ({"reward": "1"}, "reward = '1'; expected a finite number"),
        ({"log_prob": "x"}, "log_prob = 'x'; expected a number"),
        ({"other": 1.0}, r"the extras \['log_prob', 'other'\]; expected \['log_prob'\]"),
    ],
)
def test_a_bad_step_is_refused_and_adds_nothing(change, message):
    builder = Builder(SPACES["discrete"])
    builder.add(**GOOD)
    with pytest.raises(DataError, match=message):
        builder.add(**{**GOOD, **change})
    builder.end([0, 0], terminated=True)
    assert len(builder.dataset()) == 1


def test_actions_of_several_parts_are_given_as_the_environment_takes_them():
    builder = Builder(SPACES["several"])
    seen = {"code": [0.0, 0.0], "more": (3, np.zeros((2, 3, 1), np.uint8))}
    builder.add(seen, {"b": 9.0, "a": ([[1, 7]], 4)}, 0.0)
    for wrong, message in (
        ({"b": 9.0, "a": ([[1, 8]], 4)}, "expected a value of Dict"),
        ({"b": [9.0], "a": ([[1, 7]], 4)}, r"action\['b'\] = \[9.0\]; expected finite numbers of Box\(\)"),
        ([9.0, 1, 7, 4], "action is .*expected Dict"),
    ):
        with pytest.raises(DataError, match=message):
            builder.add(seen, wrong, 0.0)
    builder.end(seen, terminated=True)
    assert builder.dataset().episodes[0].action.tolist() == [[1, 1, 2, 3]]


def test_parts_of_a_nested_observation_are_named():
    builder = Builder(SPACES["multidiscrete"])
    image = np.zeros((2, 3, 1), np.uint8)
    with pytest.raises(DataError, match=r"observation\['more'\]\[0\] = 1; expected a value of Discrete\(9, start=3\)"):
        builder.add({"code": [0.0, 0.0], "more": (1, image)}, [1, -2], 0.0)
    with pytest.raises(DataError, match=r"observation has the keys \['code', 'less'\]; expected Dict"):
        builder.add({"code": [0.0, 0.0], "less": (3, image)}, [1, -2], 0.0)


def test_an_episode_ends_one_way_and_after_a_step():
    builder = Builder(SPACES["discrete"])
    with pytest.raises(DataError, match="has no steps to end"):
        builder.end([0, 0], terminated=True)
    builder.add(**GOOD)
    for flags in ({}, {"terminated": True, "truncated": True}):
        with pytest.raises(ConfigError, match="terminated=True or with truncated=True"):
            builder.end([0, 0], **flags)
