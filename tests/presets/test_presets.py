"""Presets are data: what they hold must fit the configs and environments that they are for."""

import dataclasses
import re

import gymnasium
import numpy as np
import pytest

from etude import Mlp, cli, presets
from etude.algorithms import DQNConfig, PPOConfig, find
from etude.algorithms.ppo import PPO
from etude.base.errors import ConfigError
from etude.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig
from etude.envs import make_environments
from etude.presets import ATARI
from etude.training.assembly.parts import with_environments
from etude.training.description import Environment, Execution, config_for

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
    rows = ppo.rollout_length * with_environments(Execution(), "ppo", PPO(ppo), None).environments
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
    made = make_environments(Environment(env).configured(), np.arange(1), run_seed=0)
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
    assert presets.lookup("dqn", "CartPole-v1") is presets.PRESETS["dqn"]["CartPole-v1"] is not None
    assert presets.lookup("dqn", "Pendulum-v1") is None
    assert presets.lookup("no such algorithm", "CartPole-v1") is None


def test_a_preset_for_atari_is_for_every_game_and_for_nothing_else():
    for env in ("ALE/Pong-v5", "ALE/Breakout-v5", "ale_py:ALE/Pong-v5"):
        assert presets.lookup("dqn", env) is presets.PRESETS["dqn"][ATARI]
        assert presets.none_for("ppo", env) is None and "has no preset" in presets.none_for("sac", env)
    assert presets.lookup("dqn", "Pong-v5") is None and presets.lookup("sac", "ALE/Pong-v5") is None


OWN = """
gamma = 0.9  # of every table

# Tried on seeds 1 to 3.
# Twice.
["CartPole-v1"]
base = "dqn/CartPole-v1"
network.widths = [32, 32]

["Taxi-v3"]
base = "c51/CartPole-v1"
steps = 7
max_gradient_norm = "None"
"""


def test_a_folder_of_ones_own_goes_before_etudes_presets_and_may_build_on_them(tmp_path, monkeypatch, capsys):
    (tmp_path / "dqn.toml").write_text(OWN)
    monkeypatch.setenv("ETUDE_PRESETS", str(tmp_path))
    own, etudes = presets.lookup("dqn", "CartPole-v1"), presets._built_in("dqn")["CartPole-v1"]
    assert own.config == {**etudes.config, "network": Mlp((32, 32)), "gamma": 0.99}  # the base says gamma, too
    assert (own.steps, own.environments, own.source) == (50_000, 1, "Tried on seeds 1 to 3. Twice.")
    taxi = presets.lookup("dqn", "Taxi-v3")
    assert taxi.steps == 7 and "v_min" not in taxi.config and taxi.config["max_gradient_norm"] is None
    assert taxi.source.startswith("rl-baselines3-zoo")
    assert config_for("dqn", "CartPole-v1").network == Mlp((32, 32)) and presets.lookup("dqn", "Acrobot-v1") is not None
    assert presets.lookup("c51", "CartPole-v1").config["network"] == Mlp((256, 256))  # of etude's dqn
    assert cli.main(["list"]) == 0 and "Taxi-v3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gama = 1", "gama"),
        ("['A-v1']\nsteps = 5", "environments = ''; expected a whole number of at least 1"),
        ("['A-v1']\nsteps = 5\nenvironments = true", "environments = True; expected a whole number"),
        ("['A-v1']\nsteps = 5\nenvironments = 1\ngamma = 'much'", "A-v1: DQNConfig.gamma: got 'much'"),
        ("['A-v1']\nsteps = 5\nenvironments = 1\ngama = 0.9", "gama"),
        ("['A-v1']\nbase = 'dqn/B-v1'", "base = 'dqn/B-v1': there is no such preset"),
        ("['A-v1']\nbase = 'dqn/B-v1'\n['B-v1']\nbase = 'dqn/A-v1'", "no such preset beside those that build on"),
        ("['A-v1'", "does not hold hyperparameters by name in TOML"),
    ],
)
def test_a_preset_of_ones_own_that_cannot_be_is_refused_with_its_place(tmp_path, monkeypatch, text, told):
    (tmp_path / "dqn.toml").write_text(text + "\n")
    monkeypatch.setenv("ETUDE_PRESETS", str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        presets.lookup("dqn", "A-v1")
    assert "dqn.toml" in str(caught.value)


def test_a_folder_that_is_none_and_a_file_of_no_algorithm_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ETUDE_PRESETS", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="expected a folder with files such as dqn.toml"):
        presets.lookup("dqn", "CartPole-v1")
    monkeypatch.setenv("ETUDE_PRESETS", str(tmp_path))
    (tmp_path / "dqnn.toml").write_text("")
    with pytest.raises(ConfigError, match="dqnn.toml: expected the name of an algorithm, which `etude list` lists"):
        presets.lookup("dqn", "CartPole-v1")


def test_presets_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        presets.PRESETS["dqn"]["CartPole-v1"].steps = 1
