"""Runs that diverge say so, and healthy ones do not."""

import gymnasium as gym
import numpy as np
import pytest

from etude import Mlp, Run
from etude.algorithms import DQNConfig, PPOConfig
from etude.base.errors import NumericalError
from etude.base.events import Warned

PPO = {"network": Mlp((8,), "tanh"), "rollout_length": 32, "minibatch_size": 32}
DQN = {"network": Mlp((8,)), "learning_starts": 32, "batch_size": 16, "buffer_size": 500}


def warnings_of(engine, algorithm, config, steps, env="CartPole-v1"):
    with Run(algorithm, env, config=config, engine=engine) as run:
        return [event.message for event in run.steps(steps) if isinstance(event, Warned)]


@pytest.mark.one_engine("jax")
def test_ppo_with_a_learning_rate_of_a_million_warns_of_its_weights_once(engine_name):
    found = warnings_of(engine_name, "ppo", PPOConfig(**PPO, learning_rate=1e6), 2_048)
    assert sum("has grown to" in message and "lower learning_rate" in message for message in found) == 1


@pytest.mark.one_engine("jax")
def test_dqn_whose_network_diverges_warns_of_its_weights_once(engine_name):
    found = warnings_of(engine_name, "dqn", DQNConfig(**DQN, learning_rate=100.0), 600)
    assert sum("The weight q." in message and "has grown to" in message for message in found) == 1


@pytest.mark.one_engine("jax")
@pytest.mark.parametrize(("algorithm", "config"), [("ppo", PPOConfig(**PPO)), ("dqn", DQNConfig(**DQN))])
def test_a_healthy_short_run_does_not_warn(algorithm, config, engine_name):
    assert warnings_of(engine_name, algorithm, config, 1_024) == []


def test_weights_that_are_not_finite_end_the_run_with_their_name_and_the_step(engine_name):
    with Run("dqn", "CartPole-v1", config=DQNConfig(**DQN), engine=engine_name) as run:
        events = run.steps(600)
        while run.step < 100:
            next(events)
        run.engine.load({"q.dense0.bias": np.full(8, np.nan, np.float32)})
        with pytest.raises(NumericalError, match=r"At step \d+, after \d+ gradient.*not finite is q.dense0.*"):
            list(events)


class Costly(gym.Env):
    """Each of two allowed actions costs a thousand million, the first a little less; the third is forbidden."""

    observation_space = gym.spaces.Dict(
        {"observation": gym.spaces.Box(-1, 1, (1,)), "action_mask": gym.spaces.MultiBinary(3)}
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observed(), {}

    def step(self, action):
        assert action != 2
        return self.observed(), -1e9 if action == 0 else -2e9, True, False, {}

    def observed(self):
        return {"observation": np.ones(1, np.float32), "action_mask": np.int8([1, 1, 0])}


@pytest.mark.one_engine("jax")
@pytest.mark.parametrize("double", (True, False))
def test_dqn_learns_from_rewards_of_minus_a_thousand_million(double, engine_name):
    config = DQNConfig(
        **{**DQN, "network": Mlp(())},
        train_every=1,
        learning_rate=1e7,
        double=double,
        epsilon=0.5,
        target_update_every=1,
    )
    with Run("dqn", Costly, config=config, engine=engine_name) as run:
        run.train(400)
        values = run.actor().act(trees_of_one(Costly().observed())).values[0]
        assert run.evaluate(2).mean == -1e9
    np.testing.assert_allclose(values[:2], [-1e9, -2e9], rtol=0.2)


def trees_of_one(observation):
    return {name: value[None] for name, value in observation.items()}
