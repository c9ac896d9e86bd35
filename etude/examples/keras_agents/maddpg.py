"""MADDPG in Keras, on TensorFlow or JAX: each agent acts on what it sees, and is judged by a critic that sees all.

Lowe et al. 2017, arXiv:1706.02275; relaxed samples of discrete actions: Jang et al. 2017, arXiv:1611.01144.

    agent = DDPG(128, 0.1, 0.98, 0.005)
    agent.set(policy=SoftmaxPolicy(), pool_size=100_000, batch=256, MARL=True)
    agent.train(None, [keras.optimizers.Adam(), keras.optimizers.Adam()], episodes=2_000)
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import etude
from etude.examples.keras_agents.ddpg_her import network
from etude.examples.speaker_listener import speaker_listener
from etude.solo import assign_param


class DDPG(etude.RL):
    """A speaker that sees the goal, and a listener that moves; any other PettingZoo parallel environment by its sizes.

    entropy: the weight of the policies' entropies. tau: how fast the target networks follow, for each minibatch.
    observations, actions: the sizes of each agent's observation, and its number of actions.
    """

    def __init__(
        self,
        hidden_size: int,
        entropy: float,
        gamma: float,
        tau: float,
        processes: int | None = None,
        env: Any = speaker_listener,
        observations: tuple[int, ...] = (3, 11),
        actions: tuple[int, ...] = (3, 5),
    ):
        super().__init__()
        sizes = list(zip(observations, actions, strict=True))
        joint = sum(observations) + sum(actions)
        self.actors, self.target_actors = (
            [network(seen, hidden_size, n, "softmax") for seen, n in sizes] for _ in range(2)
        )
        self.critics, self.target_critics = ([network(joint, hidden_size, 1) for _ in sizes] for _ in range(2))
        self.param = [variables(self.actors), variables(self.critics)]
        self.actions = actions
        self.env: Any = [env] * (processes or 1)
        self.entropy, self.gamma, self.tau = entropy, gamma, tau
        self.random: Any = keras.random.SeedGenerator(0)
        self.follow(1.0)

    def action(self, s: Any, i: int) -> Any:
        return self.actors[i](s)

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        taken = [ops.one_hot(a[:, i], n) for i, n in enumerate(self.actions)]
        policies = [actor(seen) for actor, seen in zip(self.target_actors, next_s, strict=True)]
        following = [ops.one_hot(ops.argmax(p, axis=1), n) for p, n in zip(policies, self.actions, strict=True)]
        actor_loss, critic_loss = 0.0, 0.0
        for i, actor in enumerate(self.actors):
            next_q = judge(self.target_critics[i], next_s, following)
            target = ops.stop_gradient(r[:, i] + self.gamma * (1 - d[:, i]) * next_q)
            critic_loss += (target - judge(self.critics[i], s, taken)) ** 2
            probabilities = actor(s[i])
            chosen = [*taken[:i], self.relaxed(probabilities), *taken[i + 1 :]]
            entropy = -ops.sum(probabilities * ops.log(probabilities + 1e-8), axis=1)
            actor_loss += -judge(self.critics[i], s, chosen) - self.entropy * entropy
        return actor_loss, critic_loss

    def relaxed(self, probabilities: Any) -> Any:
        """A one-hot sample whose gradient is that of a softmax over noisy logits."""
        uniform = keras.random.uniform(ops.shape(probabilities), 1e-6, 1.0, seed=self.random)
        soft = ops.softmax(ops.log(probabilities + 1e-8) - ops.log(-ops.log(uniform)))
        hard = ops.one_hot(ops.argmax(soft, axis=1), soft.shape[1])
        return soft + ops.stop_gradient(hard - soft)

    def update_param(self) -> None:
        self.follow(self.tau)

    def follow(self, tau: float) -> None:
        for target, source in zip(self.target_actors + self.target_critics, self.actors + self.critics, strict=True):
            assign_param(target.weights, source.weights, tau)


def judge(critic: keras.Model, s: Any, a: Any) -> Any:
    """What a critic expects of joint observations and joint one-hot actions: [B]."""
    return critic(ops.concatenate([*s, *a], axis=1))[:, 0]


def variables(networks: list[keras.Sequential]) -> list[Any]:
    """All that several networks train."""
    return [variable for network in networks for variable in network.trainable_variables]
