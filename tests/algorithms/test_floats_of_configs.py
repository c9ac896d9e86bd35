"""What is compiled for an agent serves agents with other values of the floats of its config."""

import numpy as np
import pytest
from cases import CASES

import etude
from etude.algorithms import DiscreteSACConfig, DQNConfig, EDACConfig, PPOConfig, SACConfig, SACNConfig
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.networks.maker import Maker

WITH_TEMPERATURE = (SACConfig, DiscreteSACConfig, SACNConfig, EDACConfig)
INITIAL = {"initial_log_std", "kl_coefficient", "temperature", "multiplier", "cql_alpha", "ridge"}  # at first
COMPARED = {"target_gap"}  # with None


def watched(config, read):
    """A copy of a config that notes which floats are read of it."""

    class Watched(type(config)):
        def __new__(cls):
            return object.__new__(cls)

        __init__ = object.__init__

        def __getattribute__(self, name):
            value = object.__getattribute__(self, name)
            if isinstance(value, float | Linear):
                read.add(name)
            return value

    copy = Watched()
    vars(copy).update(vars(config))
    return copy


@pytest.mark.parametrize("algorithm", sorted({case.algorithm for case in CASES if case.spaces.agents is None}))
def test_an_agent_that_is_built_reads_floats_of_its_config_for_initial_values_alone(algorithm):
    for case in CASES:
        if case.algorithm == algorithm and case.spaces.agents is None:
            read, agent = set(), case.agent()
            agent.config = watched(agent.config, read)
            agent.before_build()
            agent.build(Maker(np.random.default_rng(0), None), case.spaces)
            assert read <= INITIAL | COMPARED, case.name


@pytest.mark.parametrize("config", WITH_TEMPERATURE)
def test_a_temperature_of_zero_is_fixed_and_not_learned(config):
    with pytest.raises(ConfigError, match=r"temperature = 0.0; expected a number above 0"):
        config(temperature=0.0)
    assert config(temperature=0.0, learn_temperature=False).temperature == 0.0
    with pytest.raises(ConfigError, match="temperature = -1.0"):
        config(temperature=-1.0, learn_temperature=False)


def test_true_and_false_are_no_numbers():
    for made, name in (
        (lambda: etude.Mlp(noisy=True), "noisy = True; expected a number"),
        (lambda: DQNConfig(gamma=True), "gamma = True; expected a number"),
        (lambda: PPOConfig(learning_rate=np.bool_(False)), "learning_rate = .*False.*; expected a number"),
    ):
        with pytest.raises(ConfigError, match=name):
            made()


def test_scalars_of_numpy_are_taken_for_numbers_and_kept_in_checkpoints(tmp_path):
    schedule = Linear.through([(np.int64(0), np.float64(1e-3)), (np.int32(64), np.float32(0.5)), (np.int64(96), 0.0)])
    config = PPOConfig(
        network=etude.Mlp((np.int64(8),)), learning_rate=schedule, gamma=np.float64(0.9), rollout_length=np.int64(8),
        minibatch_size=np.int32(16), normalize_advantage=np.bool_(False),
        optimizer=etude.optimizers.Adam(np.float64(0.5)),
    )  # fmt: skip
    with etude.Run("ppo", "CartPole-v1", config=config, engine="torch", environments=2) as run:
        run.train(32)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as again:
        assert again.agent.config == config and type(again.agent.config.rollout_length) is int
    assert type(DQNConfig(learning_rate=np.float64(1e-3)).learning_rate) is float
