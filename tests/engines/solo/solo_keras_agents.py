"""Agents of one's own in Keras, as users write them. Import it once Keras has its backend."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
from keras import ops
from keras.src.utils import module_utils

S, A = 3, 2


def seed(number):
    """Seed what networks start from. On JAX, Keras would import TensorFlow, for six seconds, to seed it as well."""
    with mock.patch.object(module_utils.tensorflow, "_available", keras.backend.backend() == "tensorflow"):
        keras.utils.set_random_seed(number)


def mlp(inputs, outputs, last=None, width=16):
    layers = [keras.Input((inputs,)), keras.layers.Dense(width, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(outputs, activation=last)])


def array(x):
    return ops.convert_to_tensor(np.asarray(x))


def values(x):
    return np.array(ops.convert_to_numpy(x))


def variables(network):
    return network.weights


def optimizer(parameters, rate=1e-2):
    return keras.optimizers.Adam(rate)


def sgd(parameters, rate):
    return keras.optimizers.SGD(rate)


def copy_weights(source, target):
    target.set_weights(source.get_weights())


class DQN:
    """Deep Q-learning."""

    mode = "per example"

    def __init__(self, gamma=0.9):
        seed(0)
        self.q, self.target = mlp(S, A), mlp(S, A)
        copy_weights(self.q, self.target)
        self.param = self.q.weights
        self.gamma, self.scale, self.double, self.power = gamma, 1.0, False, 2
        self._offset = 0.0

    def action(self, s):
        return self.q(s)

    def __call__(self, s, a, next_s, r, d):
        best = ops.max(self.target(next_s), -1)
        if self.double:
            choice = ops.one_hot(ops.argmax(self.q(next_s), -1), A)
            best = ops.sum(self.target(next_s) * choice, -1)
        wanted = ops.stop_gradient(r + self.gamma * (1 - d) * best)
        error = ops.sum(self.q(s) * ops.one_hot(a, A), -1) - wanted
        self.prioritized_replay.update(error, error * 2)
        loss = self.scale * error**self.power + self._offset
        return {"per example": loss, "scalar": ops.mean(loss), "listed": [loss]}[self.mode]

    def update_param(self):
        copy_weights(self.q, self.target)


class PPO:
    """Clipped policy gradients with copies of the old policy; one loss for two optimizers."""

    def __init__(self):
        seed(0)
        self.actor, self.old, self.critic = mlp(S, A, "softmax"), mlp(S, A, "softmax"), mlp(S, 1)
        copy_weights(self.actor, self.old)
        self.param = [self.actor.weights, self.critic.weights]
        self.gamma, self.clip = 0.9, 0.2

    def action(self, s):
        return self.old(s)

    def __call__(self, s, a, next_s, r, d):
        chosen = ops.one_hot(a, A)
        ratio = ops.sum(self.actor(s) * chosen, -1) / ops.sum(self.old(s) * chosen, -1)
        error = r + self.gamma * (1 - d) * self.critic(next_s)[:, 0] - self.critic(s)[:, 0]
        advantage = ops.stop_gradient(error)
        bounded = ops.clip(ratio, 1 - self.clip, 1 + self.clip)
        self.prioritized_replay.update(error, ratio)
        return -ops.minimum(ratio * advantage, bounded * advantage) + error**2

    def update_param(self):
        copy_weights(self.actor, self.old)


class DDPG:
    """Deterministic policy gradients: two losses, each for its own optimizer."""

    def __init__(self):
        seed(0)
        self.actor, self.critic = mlp(S, 1, "tanh"), mlp(S + 1, 1)
        self.targets = {"actor": mlp(S, 1, "tanh"), "critic": mlp(S + 1, 1)}
        self.tau = 1.0
        self.update_param()
        self.param = [self.actor.weights, self.critic.weights]
        self.gamma, self.tau = 0.9, 0.1

    def action(self, s):
        return self.actor(s)

    def __call__(self, s, a, next_s, r, d):
        pair = ops.concatenate([next_s, self.targets["actor"](next_s)], -1)
        wanted = ops.stop_gradient(r + self.gamma * (1 - d) * self.targets["critic"](pair)[:, 0])
        error = self.critic(ops.concatenate([s, a], -1))[:, 0] - wanted
        policy = -ops.mean(self.critic(ops.concatenate([s, self.actor(s)], -1)))
        return [policy, error**2]

    def update_param(self):
        for name, target in self.targets.items():
            for mine, other in zip(target.weights, getattr(self, name).weights, strict=True):
                mine.assign(mine + self.tau * (other - mine))


class Noisy(DQN):
    """Random numbers in the loss and in acting, and dropout."""

    def __init__(self):
        super().__init__()
        self.draws = keras.random.SeedGenerator(7)
        self.dropout = keras.layers.Dropout(0.5, seed=3)

    def action(self, s):
        return self.q(s) + keras.random.normal((s.shape[0], A), seed=self.draws)

    def __call__(self, s, a, next_s, r, d):
        noise = keras.random.normal((s.shape[0],), seed=self.draws)
        return super().__call__(self.dropout(s, training=True), a, next_s, r + noise, d)


class Lazy(DQN):
    """A network that only the loss uses, and that is built when it is first called."""

    def __init__(self):
        super().__init__()
        self.baseline, self.draws = keras.layers.Dense(1), keras.random.SeedGenerator(1)

    def __call__(self, s, a, next_s, r, d):
        noise = keras.random.normal((s.shape[0],), seed=self.draws)
        return super().__call__(s, a, next_s, r + noise, d) + 0 * self.baseline(s)[:, 0]


class Team:
    """Two agents that observe and act together."""

    def __init__(self):
        seed(0)
        self.actors = [mlp(S, A), mlp(S, A)]
        self.param = [network.weights for network in self.actors]

    def action(self, s, i):
        return self.actors[i](s)

    def __call__(self, s, a, next_s, r, d):
        return [ops.mean((self.actors[i](s[i])[:, 0] - r[:, i]) ** 2) for i in range(2)]

    def update_param(self): ...


class Wild(DQN):
    """Turns an array into a Python number."""

    def __call__(self, s, a, next_s, r, d):
        if ops.sum(r) > 0:
            return ops.mean(self.q(s))
        return -ops.mean(self.q(s))


class Subclassed(keras.Model):
    """A model of a user's own around a Sequential."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(S, A)

    def call(self, s):
        return self.inner(s)


def dense_network(activation):
    """A network whose output is plain dense layers with this activation."""
    layers = [keras.Input((S,)), keras.layers.Dense(8), keras.layers.Activation(activation)]
    return keras.Sequential([*layers, keras.layers.Dense(A, use_bias=False)])


ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "softmax", "linear")
