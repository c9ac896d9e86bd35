"""Mutations of configs: limits, probabilities, hyperparameters, and the same seed for the same result."""

import dataclasses

import numpy as np
import pytest
from mutated_agents import random_case

from etude import algorithms
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.checkpoint.config_json import from_json, to_json
from etude.networks import ActorCritic, ByEmbedding, Conv, Mlp, Recurrent, Transformer
from etude.tuning.evolution import ArchitectureLimits, Mutation, Mutations
from etude.tuning.evolution.structure import moves_of

DQN = algorithms.dqn.DQNConfig
PPO = algorithms.ppo.PPOConfig


def only(kind, **more):
    return Mutations(
        **(dict.fromkeys(("none", "architecture", "parameters", "hyperparameters"), 0.0) | {kind: 1.0} | more)
    )


def walk(settings, config, times, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(times):
        config, mutation = settings(config, rng)
        yield config, mutation


def test_the_same_seed_gives_the_same_mutations():
    settings = Mutations(activation=0.2)
    first, again = (list(walk(settings, DQN(), 40, seed=5)) for _ in range(2))
    assert first == again
    assert first != list(walk(settings, DQN(), 40, seed=6))


def test_configs_and_mutations_survive_json():
    rng = np.random.default_rng(0)
    settings = Mutations(architecture=1.0, new_layer=0.5, activation=0.2)
    for _ in range(20):
        _, config, _ = random_case(rng)
        for changed, mutation in walk(settings, config, 5, int(rng.integers(1000))):
            assert from_json(type(changed), to_json(changed)) == changed
            assert from_json(Mutation, to_json(mutation)) == mutation


def test_architectures_stay_within_their_limits():
    limits = ArchitectureLimits(layers=(1, 3), units=(32, 100))
    config = DQN(network=Mlp((48, 64)))
    seen = set()
    for changed, mutation in walk(only("architecture", new_layer=0.5, network=limits), config, 300):
        assert 1 <= len(changed.network.widths) <= 3
        assert all(32 <= units <= 100 for units in changed.network.widths)
        seen.add(mutation.kind)
    assert seen == {"add_layer", "remove_layer", "add_units", "remove_units"}


def test_a_mutation_at_its_limit_is_refused_and_another_one_drawn():
    limits = ArchitectureLimits(layers=(2, 2), units=(64, 64))
    config = DQN(network=Mlp((64, 64)))
    found = [mutation.kind for _, mutation in walk(only("architecture", network=limits, none=1e-9), config, 5)]
    assert found == ["none"] * 5
    smallest = ArchitectureLimits(layers=(1, 3), units=(64, 500))
    for changed, mutation in walk(only("architecture", network=smallest), DQN(network=Mlp((64,))), 20):
        assert mutation.kind in ("add_layer", "add_units", "remove_units", "remove_layer")
        assert changed.network != Mlp((64,))


def test_every_recorded_mutation_changed_the_config():
    settings, config = Mutations(none=0, parameters=0, architecture=1, activation=1, hyperparameters=1), DQN()
    for changed, mutation in walk(settings, config, 200):
        assert changed != config and mutation.kind != "none"
        config = changed


def test_small_whole_numbers_can_grow_and_learning_rates_spread_evenly():
    values = [
        config.train_every
        for config, _ in walk(only("hyperparameters", select=["train_every"]), DQN(train_every=1), 300)
    ]
    assert max(values) > 3 and min(values) == 1
    rates = [
        mutation.after / mutation.before
        for _, mutation in (
            settings(PPO(learning_rate=3e-4), np.random.default_rng(i))
            for settings in [only("hyperparameters", select=["learning_rate"])]
            for i in range(300)
        )
    ]
    assert abs(np.mean(np.log(rates))) < 0.04 and 0.15 < np.std(np.log(rates)) < 0.25


def test_schedules_change_as_a_whole():
    config = DQN(learning_rate=Linear(1e-3, 1e-4))
    changed, mutation = only("hyperparameters", select=["learning_rate"])(config, np.random.default_rng(0))
    assert changed.learning_rate.start / 1e-3 == pytest.approx(changed.learning_rate.end / 1e-4)
    assert mutation.before == 1e-3 and mutation.after == changed.learning_rate.start


def test_values_that_the_config_refuses_are_drawn_anew():
    config = algorithms.recurrent_ppo.RecurrentPPOConfig(rollout_length=64, sequence_length=32)
    settings = only("hyperparameters", select=["rollout_length"], limits={"rollout_length": (32, 128)}, step=0.7)
    for changed, _ in walk(settings, config, 3):
        assert changed.rollout_length % 32 == 0


def test_activation_functions_are_drawn_from_the_given_ones():
    seen = {config.network.activation for config, _ in walk(only("activation"), DQN(), 30)}
    assert seen == {"relu", "elu", "gelu"}


def test_actor_and_critic_change_one_at_a_time():
    config = algorithms.sac.SACConfig(network=ActorCritic(Mlp((64, 64)), Mlp((64, 64))))
    fields = {mutation.field for _, mutation in walk(only("architecture"), config, 30)}
    assert fields == {"network.actor", "network.critic"}


def test_the_last_layer_that_scales_exploration_noise_stays():
    config = PPO(network=Mlp((64, 64)), gsde=True)
    for changed, _ in walk(only("architecture"), config, 50):
        assert changed.network.widths[-1] == 64 and changed.gsde_features == 64


def test_networks_of_every_kind_have_moves():
    limits = ArchitectureLimits()
    for spec in (Mlp(), Conv(), Recurrent(), Transformer()):
        assert any(moves_of(spec, limits).values())
    changed, mutation = only("architecture")(DQN(network=ByEmbedding()), np.random.default_rng(0))
    assert mutation.field == "network.network" and changed.network.network != Mlp((64, 64))


def test_replays_of_recurrent_states_keep_the_size_of_the_cell():
    config = algorithms.r2d2.R2D2Config(network=Recurrent(Mlp((64,)), 64))
    for changed, _ in walk(only("architecture"), config, 30):
        assert changed.network.units == 64
    free = dataclasses.replace(config, stored_state=False)
    assert any(changed.network.units != 64 for changed, _ in walk(only("architecture"), free, 30))


def test_a_module_beside_a_spec_keeps_the_spec_as_it_is():
    config = algorithms.sac.SACConfig(network=ActorCritic(Mlp((64, 64)), lambda: None))
    assert all(mutation.kind == "none" for _, mutation in walk(only("architecture"), config, 3))


def test_modules_of_the_users_own_keep_their_architecture():
    config = DQN(network=lambda: None)
    kinds = {mutation.kind for _, mutation in walk(Mutations(architecture=1, activation=1), config, 40)}
    assert kinds == {"none", "parameters", "hyperparameter"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"none": -1}, "none = -1"),
        (dict.fromkeys(("none", "architecture", "parameters", "activation", "hyperparameters"), 0), "every prob"),
        ({"select": ["lerning_rate"]}, "lacks"),
        ({"select": ["gamma"]}, "no limits"),
        ({"select": ["double"]}, "positive number"),
        ({"limits": {"learning_rate": (1e-8, 1e-7)}}, "outside of its limits"),
        ({"limits": {"learning_rate": (0, 1)}}, "0 < smallest"),
        ({"activations": ["swish"]}, "unknown activation"),
    ],
)
def test_bad_settings_raise_one_error(given, message):
    with pytest.raises(ConfigError, match=message):
        Mutations(**given).check(DQN())


def test_bad_limits_raise_one_error():
    with pytest.raises(ConfigError, match="smallest, largest"):
        ArchitectureLimits(layers=(3, 1))


def test_mutations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mutations().none = 1
