"""Proximal policy optimisation with recurrent networks, over sequences.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 and 9. Sequences start with
the recurrent state of the actor at that step, as in Kapturowski et al. 2019 (R2D2); gradients flow back to their start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.algorithms.ppo import ClippedObjective, importance_ratio, ppo_loss, value_error
from etude.base import checks
from etude.base.data import RECURRENT_STATE, Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicySequenceConfig
from etude.networks import Maker, Mlp, Normaliser, Recurrent, Spec, Transformer
from etude.optimizers import Adam, Optimizer


@dataclass(frozen=True)
class RecurrentPPOConfig(OnPolicySequenceConfig, StochasticPolicyConfig):
    """Hyperparameters of recurrent PPO, besides those of every algorithm that learns on-policy from sequences."""

    network: Spec = Recurrent(Mlp((64,), "tanh", "orthogonal"))  # of actor and critic: a `Recurrent` or `Transformer`
    epochs: int = 4
    max_gradient_norm: float | None = 0.5
    optimizer: Optimizer = Adam(epsilon=1e-5)
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    entropy_coefficient: float | Linear = 0.0  # entropy coefficient of the loss
    value_coefficient: float = 0.5  # value function coefficient of the loss
    value_clip_range: float | None = None  # clip range of the value function; None: not clipped
    normalize_advantage: bool = True  # standardise advantages in every minibatch
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip_range", "value_coefficient")
        if self.value_clip_range is not None:
            checks.not_negative(self, "value_clip_range")


class RecurrentPPO(Agent):
    """PPO with a recurrent actor and a recurrent critic. The recurrent state is that of the actor followed by that of
    the critic."""

    learns_from = "advantage_sequences"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        config, observed = self.config, spaces.observation
        actor = make.recurrent(config.actor_network, observed, outputs=self.policy.outputs, gain=self.policy.gain)
        critic = make.recurrent(config.critic_network, observed, outputs=1)
        self.model: dict[str, Any] = {**self.policy.around(actor, make, config.initial_log_std), "critic": critic}
        self.objective: ClippedObjective = ClippedObjective()
        self.actor_size: int = actor.state_size
        self.state_size: int = actor.state_size + critic.state_size

    def act(self, observation: Tree, state: Any) -> tuple[Any, Any]:
        seen, (actor_state, critic_state) = self.normaliser(observation), self._split(state)
        x, actor_state = self.model["policy"](seen, actor_state)
        _, critic_state = self.model["critic"](seen, critic_state)
        return self.policy.of(self.model, observation, x), ops.concatenate([actor_state, critic_state], -1)

    @property
    def state_recorded(self) -> bool:
        """False of transformers, whose keys and values are many."""
        return not any(isinstance(x, Transformer) for x in (self.config.actor_network, self.config.critic_network))

    def value(self, observation: Tree, state: Any, first: Any = None) -> tuple[Any, Any]:
        seen, (actor_state, critic_state) = self.normaliser(observation), self._split(state)
        if first is None:
            value, critic_state = self.model["critic"](seen, critic_state)
        else:
            _, actor_states = self.model["policy"].unroll(seen, actor_state, first)
            value, critic_states = self.model["critic"].unroll(seen, critic_state, first)
            actor_state, critic_state = actor_states[:, -1], critic_states[:, -1]
        return value[..., 0], ops.concatenate([actor_state, critic_state], -1)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, seen, first = self.config, self.normaliser(batch.observation), batch.extras["first"]
        actor_state, critic_state = self._split(batch.extras[RECURRENT_STATE])
        x, _ = self.model["policy"].unroll(seen, actor_state, first)
        value, _ = self.model["critic"].unroll(seen, critic_state, first)
        policy = self.policy.of(self.model, batch.observation, x)
        found = importance_ratio(policy, batch, config.normalize_advantage)
        surrogate = self.objective.surrogate(config, found)
        loss = ppo_loss(config, batch, found, surrogate, value_error(value[..., 0], batch, config.value_clip_range))
        loss.metrics |= self.objective.metrics(config, found, batch)
        return Losses(model=loss)

    def _split(self, state: Any) -> tuple[Any, Any]:
        """The recurrent states of actor and critic."""
        return state[:, : self.actor_size], state[:, self.actor_size :]
