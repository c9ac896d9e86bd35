"""Recorded and collected steps in one run, and runs that go online."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from run_cases import CART, MIXED_TINY, PENDULUM, SAC_TINY, differences, measured

import etude
from etude import Mlp
from etude.algorithms import AWACConfig, BCConfig, CalQLConfig, CQLConfig, IQLConfig, SACConfig, TD3BCConfig, TQCConfig
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Collected, Learned
from etude.networks import SimBa
from etude.optimizers import AdamW
from etude.presets import BRO, DROQ, REDQ, RLPD, SIMBA
from etude.replay import Buffer, MixedReplay

OFFLINE = {
    "network": Mlp((8,)), "batch_size": 8, "gradient_steps": 5, "train_every": 10, "learning_starts": 20,
    "buffer_size": 200, "learning_rate": 1e-2,
}  # fmt: skip
NORMED = etude.ActorCritic(Mlp((8,)), Mlp((8,), layer_norm=True))
SAC_ENSEMBLE = dataclasses.replace(SAC_TINY, n_critics=4, n_target_critics=2, policy_delay=2, network=NORMED)
MIXED = {"sac": ("Pendulum-v1", PENDULUM, SAC_ENSEMBLE), "dqn": ("CartPole-v1", CART, MIXED_TINY)}
ONLINE = {
    "awac": ("Pendulum-v1", PENDULUM, AWACConfig(**OFFLINE)),
    "cal_ql": ("Pendulum-v1", PENDULUM, CalQLConfig(**OFFLINE, samples=2)),
    "cql": ("CartPole-v1", CART, CQLConfig(**OFFLINE, target_gap=1.0, epsilon=0.3)),
    "cql-box": ("Pendulum-v1", PENDULUM, CQLConfig(**OFFLINE, samples=2, normalize_reward=True)),
    "iql": ("Pendulum-v1", PENDULUM, IQLConfig(**OFFLINE, normalize_observation=True)),
    "td3_bc": ("Pendulum-v1", PENDULUM, TD3BCConfig(**OFFLINE, random_steps=10)),
    "dqn": MIXED["dqn"],
}


def offline_run(name, engine_name, **more):
    env, data, config = ONLINE[name]
    return etude.Run(name.split("-")[0], env, config=config, data=data, engine=engine_name, seed=3, **more)


def goes_on_as_when_saved(run, path, steps=80):
    """Whether a run, and what is loaded from its checkpoint, go on with the same numbers."""
    run.save(path)
    again = etude.load(path)
    told = measured(list(run.steps(steps)))
    assert any(len(row) == 4 and isinstance(row[2], dict) for row in told), "it learned"
    return measured(list(again.steps(steps))) == told and differences(again.state(), run.state()) == []


@pytest.mark.variant
@pytest.mark.parametrize("name", MIXED)
def test_a_resumed_run_on_recorded_and_collected_steps_equals_the_uninterrupted_one(engine_name, name, tmp_path):
    env, data, config = MIXED[name]
    run = etude.Run(name, env, config=config, data=[(data, 0.5), ("sampler", 0.5)], engine=engine_name, seed=3)
    run.train(60)
    assert isinstance(run.learner.replay, MixedReplay)
    assert goes_on_as_when_saved(run, tmp_path / "run.etude")


@pytest.mark.variant
@pytest.mark.parametrize("name", ONLINE)
def test_a_run_goes_online_with_its_weights_its_optimizer_and_its_data(engine_name, name, tmp_path):
    offline = offline_run(name, engine_name)
    offline.train(20)
    online = offline.go_online(0.25)
    assert differences(offline.learner.engine.state(), online.learner.engine.state()) == []
    if offline.learner.moments is not None:
        assert differences(offline.learner.moments.state(), online.learner.moments.state()) == []
    if offline.learner.scale is not None:
        assert offline.learner.scale.factor == online.learner.scale.factor
    rings = [offline.learner.replay.ring, next(iter(online.learner.replay.buffers.values())).ring]
    assert differences(*(ring.state() for ring in rings)) == []
    before = offline.state()
    events = list(online.steps(60))
    assert any(isinstance(event, Collected) for event in events)
    learned = [event for event in events if isinstance(event, Learned)]
    starts = offline.agent.config.learning_starts
    assert learned[0].step >= starts and learned[0].gradient_steps > 20  # counted on
    assert online.step == 60 and len(online.learner.replay.ring) == 60
    assert differences(offline.state(), before) == []
    assert goes_on_as_when_saved(online, tmp_path / "run.etude")


@pytest.mark.variant
def test_an_online_run_without_data_learns_from_collected_steps_alone(engine_name, tmp_path):
    offline = offline_run("iql", engine_name)
    offline.train(10)
    online = offline.go_online(0)
    assert type(online.learner.replay) is Buffer
    online.train(40)
    assert goes_on_as_when_saved(online, tmp_path / "run.etude")


@pytest.mark.variant
def test_a_loaded_run_goes_online_with_workers_into_a_directory_of_its_own(engine_name, tmp_path):
    with offline_run("td3_bc", engine_name, run_dir=tmp_path / "offline") as run:
        run.train(20)
    loaded = etude.load(tmp_path / "offline")
    online = loaded.go_online(run_dir=tmp_path / "online", workers=2, environments=2, overlap=True, learning_rate=1e-4)
    with online:
        assert online.agent.config.learning_rate == 1e-4
        assert online.train(60).step == 60
    assert etude.load(tmp_path / "online").step == 60


@pytest.mark.variant
def test_what_cannot_go_online_is_refused_and_nothing_is_written(engine_name, tmp_path):
    bc = etude.Run("bc", "CartPole-v1", config=BCConfig(network=Mlp((8,))), data=CART, engine=engine_name)
    with pytest.raises(ConfigError, match="BC learns from recorded data alone and cannot go online"):
        bc.go_online(learning_starts=50)  # which BC has not
    run = offline_run("iql", engine_name)
    for share in (-0.1, 1, True, "half"):
        with pytest.raises(ConfigError, match="expected from 0 to below 1"):
            run.go_online(share)
    with pytest.raises(CheckpointError, match="actor"):
        run.go_online(network=Mlp((9,)), run_dir=tmp_path / "online")
    assert not (tmp_path / "online").exists()
    with pytest.raises(ConfigError, match="steps its environment already"):
        run.go_online().go_online()


@pytest.mark.variant
def test_a_deterministic_policy_explores_online_as_its_config_says(engine_name):
    still = {"exploration_noise": 0.0, "random_steps": 0, "normalize_observation": False}
    env, data, config = ONLINE["td3_bc"]
    config = dataclasses.replace(config, **still)
    online = etude.Run("td3_bc", env, config=config, data=data, engine=engine_name, seed=3).go_online()
    online.train(12)
    ring = online.learner.replay.ring
    rows = np.arange(len(ring))
    expected = online.engine.act(ring.observation(rows)).mode()
    np.testing.assert_allclose(ring.actions(rows), expected, atol=1e-5)


@pytest.mark.variant
def test_rlpd_is_a_setting_of_sac(engine_name):
    small = {**RLPD, "network": NORMED, "learning_starts": 10}
    data = [(PENDULUM, 0.5), ("sampler", 0.5)]
    run = etude.Run("sac", "Pendulum-v1", data=data, engine=engine_name, **small)
    assert run.train(14).totals["gradient_steps"] == 20 * 5
    weights = run.engine.weights()
    assert weights["critic.dense0.norm_scale"].shape == (10, 1, 8)
    assert len({weights["critic.dense1.bias"][i].tobytes() for i in range(10)}) == 10


def test_the_hyperparameters_of_rlpd_are_fields_of_sac():
    config = SACConfig(**RLPD)
    assert (config.n_critics, config.n_target_critics, config.gradient_steps) == (10, 2, 20)
    assert config.critic_network.layer_norm and not config.actor_network.layer_norm


def test_redq_droq_and_simba_are_settings_of_sac():
    redq, droq, simba = SACConfig(**REDQ), SACConfig(**DROQ), SACConfig(**SIMBA)
    assert simba.critic_network == SimBa() and simba.normalize_observation
    assert (redq.n_critics, droq.n_critics) == (10, 2)
    for config in (redq, droq):
        assert (config.n_target_critics, config.gradient_steps, config.policy_delay) == (2, 20, 20)
    assert droq.critic_network.layer_norm and droq.critic_network.dropout == 0.01 and not droq.actor_network.dropout


def test_bro_is_settings_of_tqc_that_drop_nothing_and_reset():
    config = TQCConfig(**BRO)
    assert (config.n_critics, config.quantiles, config.dropped, config.gradient_steps) == (2, 100, 0, 10)
    assert config.critic_network == SimBa(2, 512, 1) and config.optimizer == AdamW(weight_decay=1e-4)
    small = {"network": SimBa(1, 8), "quantiles": 5, "batch_size": 8, "learning_starts": 8, "reset_every": 70}
    weights = []
    for more in ({}, {"reset_every": None}):
        with etude.Run("tqc", "Pendulum-v1", seed=1, engine="torch", **BRO | small | more) as run:
            assert run.train(24).totals["gradient_steps"] == 170
            weights.append(run.engine.weights()["critic.dense0.weight"])
    assert not np.array_equal(*weights)


@pytest.mark.parametrize(
    ("field", "value"), [("n_target_critics", 3), ("n_target_critics", 0), ("n_critics", 0), ("policy_delay", 0)]
)
def test_ensembles_that_cannot_be_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        SACConfig(**{field: value})
