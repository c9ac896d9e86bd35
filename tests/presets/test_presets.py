"""Presets are data: what they hold must fit the configs and environments that they are for."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from etude import presets
from etude.algorithms import DQNConfig, PPOConfig, find
from etude.algorithms.ppo import PPO
from etude.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig
from etude.envs import make_environments
from etude.presets.preset import ATARI
from etude.training.assembly.agents import environment_for
from etude.training.assembly.parts import with_environments
from etude.training.setup import Setup

CASES = [(algorithm, env, preset) for algorithm, by_env in presets.PRESETS.items() for env, preset in by_env.items()]
IDS = [f"{algorithm}-{env}" for algorithm, env, _ in CASES]
PROMISED = {
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "LunarLander-v3",
    "LunarLanderContinuous-v3",
}  # fmt: skip

# What defaults are chosen by, where a preset must not move with them.
TUNED_DEFAULTS = {
    "ppo": {
        "network",
        "learning_rate",
        "rollout_length",
        "minibatch_size",
        "epochs",
        "normalize_observation",
        "normalize_reward",
    },
    "dqn": {
        "network",
        "learning_rate",
        "batch_size",
        "train_every",
        "gradient_steps",
        "n_step",
        "target_update_every",
        "double",
        "epsilon",
    },
}


@pytest.mark.parametrize(("algorithm", "env", "preset"), CASES, ids=IDS)
def test_every_preset_is_a_valid_config_of_its_algorithm(algorithm, env, preset):
    config = find(algorithm)[1](**preset.config)
    for name, value in preset.config.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(("algorithm", "env", "preset"), CASES, ids=IDS)
def test_no_preset_rests_on_a_default_that_was_tuned_for_environments_without_one(algorithm, env, preset):
    assert TUNED_DEFAULTS.get(algorithm, set()) <= preset.config.keys()


def test_the_defaults_of_ppo_and_dqn_take_many_gradient_steps():
    ppo, dqn = PPOConfig(), DQNConfig()
    rows = ppo.rollout_length * with_environments(Setup(), "ppo", PPO(ppo), None).environments
    assert rows % ppo.minibatch_size == 0
    assert 100_000 // rows * ppo.epochs * (rows // ppo.minibatch_size) > 15_000
    assert 100_000 // dqn.train_every * dqn.gradient_steps == 100_000


@pytest.mark.parametrize(("algorithm", "env", "preset"), CASES, ids=IDS)
def test_every_preset_is_for_a_registered_environment_with_actions_that_the_algorithm_takes(algorithm, env, preset):
    if env == ATARI:
        pytest.importorskip("ale_py")
        env = "ALE/Breakout-v5"
    if ":" not in env:  # of another package's, with several agents, Gymnasium knows nothing
        assert gymnasium.spec(env).id == env
    made = make_environments(environment_for(env, None, None, None), np.arange(1), run_seed=0)
    agents = (made.spaces.agents or {"alone": made.spaces}).values()
    assert all(isinstance(own.action, find(algorithm)[0].actions) for own in agents)
    made.close()


@pytest.mark.parametrize(("algorithm", "env", "preset"), CASES, ids=IDS)
def test_cadences_divide_the_run_and_the_rollout(algorithm, env, preset):
    config = find(algorithm)[1](**preset.config)
    if isinstance(config, OnPolicyConfig):
        assert config.rollout_length * preset.environments % (config.minibatch_size or 1) == 0
    elif isinstance(config, OfflineConfig):
        assert preset.environments == 1 and preset.steps % config.gradient_steps == 0
    elif isinstance(config, OffPolicyConfig):
        assert config.train_every % preset.environments == 0
        assert config.learning_starts < preset.steps


def test_every_environment_promised_has_a_preset():
    assert {env for _, env, _ in CASES} >= PROMISED


def test_every_preset_names_its_source():
    for _, env, preset in CASES:
        assert env in preset.source or env == ATARI and ".yml, atari" in preset.source or "arXiv" in preset.source


def test_looking_up_an_unknown_pair_gives_none():
    assert presets.lookup("dqn", "CartPole-v1") is presets.PRESETS["dqn"]["CartPole-v1"]
    assert presets.lookup("dqn", "Pendulum-v1") is None
    assert presets.lookup("no such algorithm", "CartPole-v1") is None


def test_a_preset_for_atari_is_for_every_game_and_for_nothing_else():
    for env in ("ALE/Pong-v5", "ALE/Breakout-v5", "ale_py:ALE/Pong-v5"):
        assert presets.lookup("dqn", env) is presets.PRESETS["dqn"][ATARI]
        assert presets.none_for("ppo", env) is None and "has no preset" in presets.none_for("sac", env)
    assert presets.lookup("dqn", "Pong-v5") is None and presets.lookup("sac", "ALE/Pong-v5") is None


def test_presets_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        presets.PRESETS["dqn"]["CartPole-v1"].steps = 1
