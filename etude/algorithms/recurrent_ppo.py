"""Proximal policy optimisation with a memory: the clipped ratio, over sequences of recurrent networks.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 and 9. Sequences start with
the memory that was acted with, as in Kapturowski et al. 2019 (R2D2), and gradients flow back to their first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Agent, Losses
from etude.algorithms.policies import Policy
from etude.algorithms.proximal import clip_fraction, joined, moved, value_error
from etude.base import checks
from etude.base.data import MEMORY, Batch
from etude.base.optimizers import Adam
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicySequenceConfig
from etude.losses.policy import ppo_clip
from etude.networks import Maker, Mlp, Recurrent, Spec


@dataclass(frozen=True)
class RecurrentPPOConfig(OnPolicySequenceConfig):
    """Hyperparameters of recurrent PPO, besides those of every algorithm that learns on-policy from sequences."""

    network: Spec = Recurrent(Mlp((64,), "tanh", "orthogonal"))  # a `Recurrent`, of the actor and of the critic: two
    epochs: int = 4
    max_gradient_norm: float | None = 0.5
    optimizer: Adam = Adam(epsilon=1e-5)
    clip_range: float | Linear = 0.2  # bound on the ratio of probabilities: 1 - clip to 1 + clip
    entropy_coefficient: float | Linear = 0.0  # what entropy is worth in the loss
    value_coefficient: float = 0.5  # weight of the critic's loss
    value_clip_range: float | None = None  # bound on how far values move from those of the rollout; None: no bound
    normalize_advantage: bool = True  # to mean 0 and deviation 1 in every minibatch
    initial_log_std: float = 0.0  # for Box actions: where it starts, in the range [-1, 1] that the agent sees

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip_range", "value_coefficient")
        if self.value_clip_range is not None:
            checks.not_negative(self, "value_clip_range")


class RecurrentPPO(Agent):
    """PPO whose actor and critic see what is observed and what each remembers of the episode. The memory of an
    environment is that of the actor and, after it, that of the critic."""

    learns_from = "advantage_sequences"
    actions = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy = Policy(spaces)
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        config, observed = self.config, spaces.observation
        actor = make.recurrent(config.actor_network, observed, outputs=self.policy.outputs, gain=0.01)
        critic = make.recurrent(config.critic_network, observed, outputs=1)
        self.model = {**self.policy.around(actor, make, config.initial_log_std), "critic": critic}
        self.actors, self.memory = actor.memory, actor.memory + critic.memory

    def act(self, observation: Tree, memory: Any) -> tuple[Any, Any]:
        seen, (acting, judging) = self.normaliser(observation), self._split(memory)
        x, acting = self.model["policy"](seen, acting)
        _, judging = self.model["critic"](seen, judging)
        return self.policy.of(self.model, observation, x), ops.concatenate([acting, judging], -1)

    def value(self, observation: Tree, memory: Any) -> tuple[Any, Any]:
        acting, judging = self._split(memory)
        value, judging = self.model["critic"](self.normaliser(observation), judging)
        return value[:, 0], ops.concatenate([acting, judging], -1)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, seen, first = self.config, self.normaliser(batch.observation), batch.extras["first"]
        acting, judging = self._split(batch.extras[MEMORY])
        x, _ = self.model["policy"].unroll(seen, acting, first)
        value, _ = self.model["critic"].unroll(seen, judging, first)
        now = moved(self.policy.of(self.model, batch.observation, x), batch, config.normalize_advantage)
        surrogate = ppo_clip(now.log_ratio, now.advantage, config.clip_range)
        error = value_error(value[..., 0], batch, config.value_clip_range)
        loss = joined(config, batch, now, surrogate, error)
        loss.metrics["clip_fraction"] = clip_fraction(now, batch, config.clip_range)
        return Losses(model=loss)

    def _split(self, memory: Any) -> tuple[Any, Any]:
        """The memories of actor and critic."""
        return memory[:, : self.actors], memory[:, self.actors :]
