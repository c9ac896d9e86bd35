"""DQN in Keras, on TensorFlow or JAX.

Mnih et al. 2015, doi:10.1038/nature14236.

    agent = DQN(4, 128, 2)
    agent.set(policy=EpsGreedyQPolicy(0.01), pool_size=10_000, batch=64, update_steps=10)
    agent.train(None, keras.optimizers.Adam(), episodes=200)
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import etude
from etude.solo import assign_param


class DQN(etude.RL):
    """Values of every action, for environments with flat observations and Discrete actions.

    processes: for as many worker processes; they are asked for again in `train`.
    """

    def __init__(
        self,
        state_dim: int,
        hidden_size: int,
        action_dim: int,
        processes: int | None = None,
        env: Any = "CartPole-v1",
        gamma: float = 0.98,
    ):
        super().__init__()
        self.q: keras.Sequential = network(state_dim, hidden_size, action_dim)
        self.target: keras.Sequential = network(state_dim, hidden_size, action_dim)
        assign_param(self.target.weights, self.q.weights)
        self.param = self.q.trainable_variables
        self.env: Any = [env] * (processes or 1)
        self.gamma = gamma

    def action(self, s: Any) -> Any:
        return self.q(s)

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        return self.td_error(s, a, next_s, r, d) ** 2

    def td_error(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        """The temporal difference [B]."""
        q = ops.take_along_axis(self.q(s), a[:, None], axis=1)[:, 0]
        next_q = ops.max(self.target(next_s), axis=1)
        return ops.stop_gradient(r + self.gamma * (1 - d) * next_q) - q

    def update_param(self) -> None:
        assign_param(self.target.weights, self.q.weights)


def network(inputs: int, hidden_size: int, outputs: int, activation: str | None = None) -> keras.Sequential:
    """One hidden layer."""
    hidden = keras.layers.Dense(hidden_size, activation="relu")
    return keras.Sequential([keras.Input((inputs,)), hidden, keras.layers.Dense(outputs, activation=activation)])
