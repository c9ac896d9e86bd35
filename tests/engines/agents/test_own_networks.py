"""Networks that a user wrote for actor and critic."""

from types import SimpleNamespace

import numpy as np
import pytest

import etude
from etude import engines
from etude.agent import Agent
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.base.cores import Busy
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Box, Discrete, Spaces
from etude.networks import ActorCritic, Mlp
from etude.training.description import Execution

OBSERVATION, ACTION = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)
BOX, CHOICES = Spaces(OBSERVATION, ACTION), Spaces(OBSERVATION, Discrete(4))


def layer(engine_name, inputs, outputs):
    """What makes a module of one layer; a critic where it has two inputs."""
    if engine_name == "torch":
        import torch

        class OneLayer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(sum(inputs), outputs)

            def forward(self, *parts):
                return self.layer(torch.cat(parts, -1))

        return OneLayer

    def make():
        import keras

        parts = [keras.Input((size,)) for size in inputs]
        joined = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
        return keras.Model(parts[0] if len(parts) == 1 else parts, keras.layers.Dense(outputs)(joined))

    return make


def engine_of(engine_name, agent: Agent, spaces):
    return engines.create(engine_name, agent, spaces, seed=3)


def values_of(engine, prefix):
    return [value for name, value in engine.weights().items() if name.startswith(prefix)]


@pytest.mark.parametrize(("kind", "config", "outputs"), [(SAC, SACConfig, 4), (TD3, TD3Config, 2)])
def test_a_critic_of_ones_own_reads_observation_and_action_and_each_has_weights_of_its_own(
    engine_name, kind, config, outputs
):
    networks = ActorCritic(layer(engine_name, (3,), outputs), layer(engine_name, (3, 2), 1))
    engine = engine_of(engine_name, kind(config(network=networks)), BOX)
    first, second = (values_of(engine, f"critic.{i}.") for i in range(2))
    assert {value.shape for value in first} >= {(1,)} and len(first) == len(second) > 0
    assert not all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert engine.act(np.zeros((5, 3), np.float32)) is not None


def test_actor_and_critic_may_be_of_different_kinds(engine_name):
    networks = ActorCritic(layer(engine_name, (3,), 4), Mlp((8,)))
    engine = engine_of(engine_name, PPO(PPOConfig(network=networks)), CHOICES)
    assert engine.weights()["model.critic.dense0.weight"].shape == (3, 8)
    assert engine.value(np.zeros((5, 3), np.float32)).shape == (5,)


def test_one_function_for_actor_and_critic_is_answered_with_how_to_give_two(engine_name):
    with pytest.raises(NetworkError, match=r"network=ActorCritic\(actor=\.\.\., critic=\.\.\.\)"):
        engine_of(engine_name, PPO(PPOConfig(network=layer(engine_name, (3,), 4))), CHOICES)


def test_an_instance_is_refused_with_what_to_give(engine_name):
    instance = layer(engine_name, (3,), 4)()
    with pytest.raises(ConfigError, match=r"is an instance of \w+; expected what makes one.*network=lambda"):
        engine_of(engine_name, DQN(DQNConfig(network=instance)), CHOICES)


def test_what_wants_arguments_is_refused_with_what_to_give(engine_name):
    with pytest.raises(ConfigError, match="cannot be called without arguments: missing a required argument: 'units'"):
        engine_of(engine_name, DQN(DQNConfig(network=lambda units: units)), CHOICES)


def test_an_algorithm_with_one_network_refuses_two(engine_name):
    with pytest.raises(ConfigError, match="this algorithm has one network"):
        engine_of(engine_name, DQN(DQNConfig(network=ActorCritic())), CHOICES)


def test_a_network_of_another_framework_is_refused_with_the_engines_that_take_it(engine_name):
    given = "jax" if engine_name == "torch" else "torch"
    with pytest.raises(NetworkError, match=f"the engine {engine_name} expects .*give engine='{given}'"):
        engine_of(engine_name, DQN(DQNConfig(network=lambda: object())), CHOICES)


def with_dropout_and_statistics(engine_name):
    """What makes a module whose outputs depend on the mode that it is in."""
    if engine_name == "torch":
        from torch import nn

        return lambda: nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 2))

    def make():
        from keras import Sequential, layers

        inner = [layers.Dense(32), layers.BatchNormalization(), layers.Dropout(0.5), layers.ReLU(), layers.Dense(2)]
        return Sequential([layers.Input((4,)), *inner])

    return make


@pytest.mark.variant("jax")
def test_a_keras_model_whose_call_takes_no_training_has_layers_in_the_mode_of_the_loss(engine_name, tmp_path):
    """Of Keras on each engine, torch among them; in this process alone, where Keras is on the engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", engine_name)
        keras = pytest.importorskip("keras")
    if keras.backend.backend() != engine_name:
        pytest.skip(f"Keras is on {keras.backend.backend()} in this process")

    class Critic(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.last = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)

        def call(self, inputs):
            return self.last(self.norm(keras.ops.concatenate(inputs, -1)))

    networks = {"network": ActorCritic(Mlp((8,)), Critic), "batch_size": 16, "learning_starts": 32}
    with etude.Run("td3", "Pendulum-v1", engine=engine_name, learning_rate=0.0, seed=1, **networks) as run:
        run.train(32)
        replay, before = run.learner.replay, run.engine.weights()
        batches = replay.sample(2, 16)
        run.engine.learn(batches, run.learner.hyper())
        after, joined = run.engine.weights(), np.concatenate([batches.observation, batches.action], -1)
        mean, var = (before[f"critic.0.state{i}.moving_{name}"] for i, name in enumerate(("mean", "variance")))
        for one in joined:
            mean, var = mean / 2 + one.mean(0) / 2, var / 2 + one.var(0) / 2
        np.testing.assert_allclose(after["critic.0.state0.moving_mean"], mean, 1e-4, 1e-6)
        np.testing.assert_allclose(after["critic.0.state1.moving_variance"], var, 1e-4, 1e-6)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", config=run.agent.config) as again:
        assert all(np.array_equal(value, after[name]) for name, value in again.engine.weights().items())
        again.train(4)
    if engine_name == "torch":
        with pytest.raises(ConfigError, match="compiled = True cannot follow a keras.Model on torch"):
            etude.Run("td3", "Pendulum-v1", engine="torch", execution=Execution(compiled=True), **networks)


def statistics(run, part):
    names = ("running_mean", "running_var", "moving_mean", "moving_variance")
    return [value for name, value in run.engine.weights().items() if name.startswith(part) and name.endswith(names)]


def test_modules_act_in_inference_mode_and_learn_in_training_mode(engine_name, tmp_path):
    network, one = with_dropout_and_statistics(engine_name), np.float32([[0.1, -0.2, 0.3, 0.1]])
    settings = {"network": network, "learning_starts": 64, "batch_size": 32, "train_every": 8}
    with etude.Run("dqn", "CartPole-v1", engine=engine_name, target_update_every=10**6, **settings) as run:
        before, target = statistics(run, "q."), statistics(run, "q_target.")
        assert len(before) == len(target) == 2
        run.train(128)
        values = run.engine.act(one)
        for _ in range(3):
            np.testing.assert_array_equal(run.engine.act(one), values)
        assert not any(map(np.array_equal, statistics(run, "q."), before)), "losses move the running statistics"
        assert all(map(np.array_equal, statistics(run, "q_target."), target)), "a target is in inference mode"
        batches = run.learner.replay.sample(2, 32)
        still = {name: 0.0 if name == "learning_rate" else value for name, value in run.learner.hyper().items()}
        losses = [run.engine.learn(batches, still).losses["q"] for _ in range(3)]
        assert len(set(losses)) == 3, "dropout draws anew in losses"
        run.save(tmp_path / "run.etude")
        values = run.engine.act(one)
    with etude.load(tmp_path / "run.etude", config=run.agent.config) as again:
        np.testing.assert_array_equal(again.engine.act(one), values)


def test_what_is_frozen_is_not_trained_and_lazy_layers_begin_by_the_seed(engine_name):
    def network():
        if engine_name == "torch":
            from torch import nn

            backbone = nn.Linear(4, 8)
            backbone.weight.requires_grad_(False)
            return nn.Sequential(backbone, nn.LazyLinear(2))
        from keras import Sequential, layers

        return Sequential([layers.Dense(8, trainable=False), layers.Dense(2)])

    settings = {"network": network, "learning_starts": 16, "batch_size": 8, "train_every": 8}
    frozen = "q.0.weight" if engine_name == "torch" else "q.state0.kernel"
    first = []
    for _ in range(2):
        with etude.Run("dqn", "CartPole-v1", engine=engine_name, seed=1, **settings) as run:
            before = run.engine.weights()
            assert frozen not in run.engine.layout.trainable and len(before) == 8  # with the target network
            run.train(64)
            after = run.engine.weights()
            first.append(before)
        still = {name for name in before if name.startswith("q.") and np.array_equal(before[name], after[name])}
        assert still == ({frozen} if engine_name == "torch" else {frozen, "q.state1.bias"})
    assert all(np.array_equal(value, first[1][name]) for name, value in first[0].items())


def test_processes_average_the_statistics_of_modules_in_one_order(engine_name):
    if engine_name != "torch":
        pytest.skip("a process for each replica")
    import torch

    from etude.engines.torch_group import ReplicatedTorchEngine

    def network():
        return torch.nn.Sequential(*[torch.nn.BatchNorm1d(3) for _ in range(8)], torch.nn.Linear(3, 4))

    alone = SimpleNamespace(group=SimpleNamespace(size=1), device="cpu")
    engine = ReplicatedTorchEngine(DQN(DQNConfig(network=network)), CHOICES, 0, alone, Busy())
    assert len(engine._moved) == 16 and engine._moved == sorted(engine._moved)
