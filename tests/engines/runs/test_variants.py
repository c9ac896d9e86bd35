"""Agents with some of their methods replaced: `etude.variant`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from run_cases import DQN_TINY, PPO_TINY, differences

import etude
from etude import Loss, Losses, Mlp, Run, ops
from etude.algorithms import A2C, DQN, MAPPO, PPO, DQNConfig, PPOConfig
from etude.base.errors import CheckpointError, ConfigError
from etude.base.spaces import Discrete
from etude.config import GradientsConfig

SMALL = {"environments": 4, "seed": 3}


def with_bonus(self, batch, noise):
    """PPO's loss with another metric, and with more entropy."""
    losses = PPO.loss(self, batch, noise)
    entropy = ops.mean(self.act(batch.observation).entropy())
    model = losses["model"]
    return Losses(model=Loss(model.value - self.config.bonus * entropy, **model.metrics, bonus=entropy))


@dataclasses.dataclass(frozen=True)
class BonusConfig(PPOConfig):
    """PPO's, and the coefficient of a bonus."""

    bonus: float = 0.05


@dataclasses.dataclass(frozen=True)
class WorkerPPOConfig(PPOConfig, GradientsConfig):
    """PPO's, for gradients from workers."""

    rollout_length: int = 8
    minibatch_size: int | None = None
    epochs: int = 1
    normalize_observation: bool = False
    normalize_reward: bool = False


BONUS = BonusConfig(network=Mlp((8,)), learning_rate=1e-2, rollout_length=16, minibatch_size=16, epochs=2)


def trained(agent, engine_name, steps=128, env="CartPole-v1", **more):
    with Run(agent, env, engine=engine_name, **SMALL, **more) as run:
        run.train(steps)
        return run.state()


@pytest.mark.parametrize(
    ("agent", "config"), [(PPO, PPO_TINY), pytest.param(DQN, DQN_TINY, marks=pytest.mark.variant)], ids=["ppo", "dqn"]
)
def test_a_variant_with_the_originals_own_methods_is_the_original_bit_for_bit(engine_name, agent, config):
    same = etude.variant(agent, loss=agent.loss, act=agent.act, learns_from=agent.learns_from)
    original, variant = trained(agent(config), engine_name), trained(same(config), engine_name)
    assert variant["description"]["algorithm"] == f"{agent.__name__}Variant".lower()
    for state in (original, variant):
        del state["description"]
    assert differences(original, variant) == []


@pytest.mark.variant
def test_a_variant_learns_in_a_pool_what_it_learns_in_this_process_and_goes_on_from_a_checkpoint(engine_name, tmp_path):
    agent = etude.variant(PPO, loss=with_bonus, name="Bonus")(BONUS)
    whole = trained(agent, engine_name, 192)
    with Run(agent, "CartPole-v1", engine=engine_name, workers=2, **SMALL) as run:
        run.train(128)
        assert "bonus" in [event for event in run.steps(64) if hasattr(event, "losses")][-1].metrics
        assert differences({**whole, "description": 0}, {**run.state(), "description": 0}) == []
    with Run(agent, "CartPole-v1", engine=engine_name, **SMALL) as run:
        run.train(128)
        run.save(tmp_path / "bonus.etude")
    with pytest.raises(ConfigError, match="an agent of your own, bonus: give it again, as agent="):
        etude.load(tmp_path / "bonus.etude")
    with pytest.raises(CheckpointError, match="of bonus, and the run is of ppo"):
        etude.load(tmp_path / "bonus.etude", agent=PPO(BONUS))
    with etude.load(tmp_path / "bonus.etude", agent=agent) as run:
        run.train(64)
        assert differences({**whole, "description": 0}, {**run.state(), "description": 0}) == []


@pytest.mark.variant  # compiles in each worker
def test_ppo_with_gradients_from_workers_wants_a_config_for_them_and_then_learns(engine_name):
    agent = etude.variant(PPO, learns_from="gradients")
    with pytest.raises(ConfigError, match="PPOVariant learns from gradients, and PPOConfig is no GradientsConfig"):
        Run(agent(PPO_TINY), "CartPole-v1")
    here, workers = (trained(agent(WorkerPPOConfig(network=Mlp((8,)))), engine_name, workers=n) for n in (0, 2))
    assert differences(here["engine"], workers["engine"]) == [] and here["progress"]["gradient_steps"] == 16


@pytest.mark.variant
def test_variants_have_class_attributes_of_their_own_and_can_be_varied_again(engine_name):
    only = etude.variant(A2C, actions=(Discrete,), name="Chooser")
    again = etude.variant(only, loss=A2C.loss)
    assert again.__name__ == "ChooserVariant" and issubclass(again, A2C)
    with pytest.raises(etude.base.errors.SpaceError, match="ChooserVariant needs Discrete actions"):
        Run(again(etude.algorithms.A2CConfig()), "Pendulum-v1", engine=engine_name)


@pytest.mark.variant
def test_a_variant_of_an_agent_for_several_agents_is_one(engine_name):
    pytest.importorskip("mpe2")
    config = etude.algorithms.MAPPOConfig(network=Mlp((8,)), rollout_length=16, minibatch_size=16, epochs=1)
    env = "mpe2:simple_spread_v3"
    state = trained(etude.variant(MAPPO, loss=MAPPO.loss)(config), engine_name, 64, env)
    assert differences(state["engine"], trained(MAPPO(config), engine_name, 64, env)["engine"]) == []


class Callable:
    def __call__(self, batch, noise):
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"los": PPO.loss}, "PPO has no los to replace; it has act, acted, actions, acts_by, .*loss, reward, .*value"),
        ({"_check": PPO.loss}, "no _check to replace"),
        ({"loss": lambda batch: batch}, r"loss\(batch\) cannot replace PPO.loss\(self, batch, noise\); .* self first"),
        ({"loss": 3}, r"loss = 3 cannot replace PPO.loss\(self, batch, noise\); expected a function"),
        ({"loss": Callable()}, r"Callable object .* expected a function"),
        ({"acts_by": "value"}, "acts_by = 'value'; expected one of values, actions, distribution"),
        ({"actions": Discrete}, "expected a tuple of classes of spaces"),
        ({"name": "PPO"}, "name = 'PPO'; expected the name of a class that is not the name of an algorithm"),
        ({"name": "my ppo"}, "expected the name of a class"),
    ],
)
@pytest.mark.variant
def test_what_cannot_be_replaced_is_refused_with_what_can(given, said):
    with pytest.raises(ConfigError, match=said):
        etude.variant(PPO, **given)


@pytest.mark.variant
def test_a_variant_of_something_else_than_a_class_of_agents_is_refused():
    for agent in ("ppo", PPO(PPO_TINY), DQNConfig, np.ndarray):
        with pytest.raises(ConfigError, match="variant takes the class of an agent, such as etude.algorithms.PPO; got"):
            etude.variant(agent)


@pytest.mark.variant
def test_a_replaced_value_is_what_advantages_are_estimated_with(engine_name):
    def nothing(self, observation):
        return ops.zeros_like(PPO.value(self, observation))

    config = dataclasses.replace(PPO_TINY, gae_lambda=0.0, normalize_reward=False, normalize_advantage=False)
    with Run(etude.variant(PPO, value=nothing)(config), "CartPole-v1", engine=engine_name, **SMALL) as run:
        run.train(48)
        run.learner.take(run.collection.collect(run.learner.collect_request(64), 48, 0)[0])
        batch = run.learner.replay.sample(1, 64)
        np.testing.assert_allclose(batch.extras["advantage"], 1.0)  # the reward alone: values are 0
