"""Networks of their own for actor and critic, as data."""

import json

from etude.algorithms.ppo import PPOConfig
from etude.checkpoint.config_json import from_json
from etude.networks import ActorCritic, Conv, Mlp
from etude.training.assembly.described import plain_config


def test_a_spec_is_the_network_of_both():
    config = PPOConfig(network=Mlp((8,)))
    assert config.actor_network == config.critic_network == Mlp((8,))


def test_each_gets_its_own_and_the_pair_comes_back_from_json():
    config = PPOConfig(network=ActorCritic(actor=Mlp((8,)), critic=Conv()))
    assert (config.actor_network, config.critic_network) == (Mlp((8,)), Conv())
    plain, functions = plain_config(config)
    assert from_json(PPOConfig, json.loads(json.dumps(plain))) == config
    assert not functions


def test_a_function_within_the_pair_is_named_as_what_no_checkpoint_holds():
    def mine():
        raise AssertionError("describing a config makes no network")

    plain, functions = plain_config(PPOConfig(network=ActorCritic(actor=Mlp((8,)), critic=mine)))
    assert list(functions) == ["network.critic"] and "mine" in functions["network.critic"]
    assert plain["network"]["critic"] == functions["network.critic"]
