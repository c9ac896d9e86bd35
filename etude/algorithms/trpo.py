"""Trust region policy optimisation: natural gradients, and a bound on how far a step moves the policy.

Schulman et al. 2015, Trust region policy optimization, arXiv:1502.05477, equation 14 with the single path's estimates;
advantages by Schulman et al. 2016, arXiv:1506.02438.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, LearnsFrom, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.algorithms.ppo import importance_ratio
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig, TrustRegionConfig
from etude.networks import Maker, Mlp, Normaliser, Part, Spec
from etude.optimizers import Adam, Optimizer


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig, TrustRegionConfig, StochasticPolicyConfig):
    """Hyperparameters of TRPO, besides those of every on-policy algorithm with a trust region."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    learning_rate: float | Linear = 1e-3  # of the critic; the trust region bounds the policy's steps
    optimizer: Optimizer = Adam(epsilon=1e-5)  # of the critic
    rollout_length: int = 256
    minibatch_size: int | None = None
    epochs: int = 160  # gradient steps of the critic on each rollout; with the last comes the policy's step
    normalize_observation: bool = True
    normalize_reward: bool = True
    normalize_advantage: bool = True  # standardise advantages over the rollout
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minibatch_size is not None:
            raise ConfigError(
                f"{type(self).__name__}: minibatch_size = {self.minibatch_size}; the divergence is bounded over "
                "the whole rollout. Leave it at None."
            )


class TRPO(Agent):
    """A stochastic policy that takes one step within a trust region on each rollout, and a critic of states that takes
    several of its optimizer's."""

    learns_from: LearnsFrom = "advantages"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor: dict[str, Part] = self.policy.make(make, self.config.actor_network, self.config.initial_log_std)
        self.critic: Part = make(self.config.critic_network, spaces.observation, outputs=1)
        self.trained_every: dict[str, str] = {"actor": "epochs"}
        self.trust_regions: frozenset[str] = frozenset({"actor"})

    def act(self, observation: Tree) -> Any:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.critic(self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        found = importance_ratio(self.act(batch.observation), batch, self.config.normalize_advantage)
        surrogate = -ops.mean(batch.weight * found.ratio * found.advantage)
        entropy = ops.mean(batch.weight * found.policy.entropy())
        error = self.value(batch.observation) - batch.extras["return"]
        return Losses(
            actor=Loss(surrogate, policy=(found.policy, batch.weight), entropy=entropy),
            critic=Loss(ops.mean(batch.weight * ops.square(error))),
        )
