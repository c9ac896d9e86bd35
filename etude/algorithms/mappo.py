"""Multi-agent proximal policy optimisation with centralised critics.

Yu et al. 2022, The surprising effectiveness of PPO in cooperative multi-agent games, arXiv:2103.01955.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.algorithms.ppo import ClippedObjective, importance_ratio, ppo_loss
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Dict, Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig
from etude.multi_agent.joint import AGENTS, present_for, split_actions
from etude.multi_agent.policies import CRITIC_READS, CentralisedCritics, filled, stacked, stacked_batch, unstacked
from etude.networks import Maker, Mlp, Normaliser, Spec
from etude.optimizers import Adam, Optimizer


@dataclass(frozen=True)
class MAPPOConfig(OnPolicyConfig, StochasticPolicyConfig):
    """Hyperparameters of MAPPO, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks of each policy
    epochs: int = 10
    max_gradient_norm: float | None = 10.0
    optimizer: Optimizer = Adam(epsilon=1e-5)
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    entropy_coefficient: float | Linear = 0.01  # entropy coefficient of the loss
    value_coefficient: float = 1.0  # value function coefficient of the loss
    normalize_advantage: bool = True  # standardise advantages over the agents of a policy, in every minibatch
    critic_reads: Literal["observations", "state"] = "observations"  # of all agents, or the environment's state()
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip_range", "value_coefficient")
        checks.one_of(self, "critic_reads", CRITIC_READS)


class MAPPO(CentralisedCritics):
    """For each policy an actor of an agent's own observation, and a critic of the observations of all agents, or of the
    environment's state."""

    learns_from = "advantages"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        assert spaces.agents is not None
        self.agents: dict[str, Spaces] = spaces.agents
        self.driven: dict[str, tuple[str, ...]] = self.policies.driven(spaces.agents)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        there = Box(0.0, 1.0, (len(self.agents),), np.float32)
        everything = Dict({"all": self.critic_space(spaces), "there": there})
        self.heads: dict[str, Policy] = {}
        self.objective: ClippedObjective = ClippedObjective()
        for policy, names in self.driven.items():
            own = self.agents[names[0]]
            seen = self.policy_space(own.observation, names)
            self.heads[policy] = policy_for(self.config, Spaces(seen, own.action))
            parts = self.heads[policy].make(make, self.config.actor_network, self.config.initial_log_std)
            # The critic of several agents always gets the identity of the agent.
            seen = self.policy_space(everything, names, identity=True)
            parts["critic"] = make(self.config.critic_network, seen, outputs=1)
            self.give(policy, {f"model.{name}": part for name, part in parts.items()})

    def act(self, observation: Tree) -> tuple[Any, ...]:
        found: dict[str, Any] = {}
        seen = self.normaliser.part((AGENTS,), observation[AGENTS])
        for policy, names in self.driven.items():
            found |= dict(zip(names, unstacked(self._policy(policy, seen), len(names)), strict=True))
        return tuple(found[name] for name in self.agents)

    def act_alone(self, agent: str, observation: Tree) -> Any:
        return self._head(*self.seen_alone(agent, observation))

    def value(self, observation: Tree) -> Any:
        found: dict[str, Any] = {}
        seen = self._everything(observation)
        for policy, names in self.driven.items():
            found |= dict(zip(names, unstacked(self._value(policy, seen), len(names)), strict=True))
        return ops.stack([found[name] for name in self.agents], -1)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        seen, everything = self.normaliser(batch.observation)[AGENTS], self._everything(batch.observation)
        actions, order, losses = split_actions(self.agents, batch.sampled_action), list(self.agents), Losses()
        for policy, names in self.driven.items():
            taken = {"observation": None, "next_observation": None, "action": stacked([actions[n] for n in names])}
            own = stacked_batch(batch, [order.index(name) for name in names], taken)
            # That of PPO, for the agents of one policy
            config = self.config
            found = importance_ratio(self._policy(policy, seen), own, config.normalize_advantage)
            value_error = ops.square(self._value(policy, everything) - own.extras["return"])
            loss = ppo_loss(config, own, found, self.objective.surrogate(config, found), value_error)
            metrics = loss.metrics | self.objective.metrics(config, found, own)
            told = {f"{policy}.{key}": value for key, value in metrics.items()}
            losses[f"{policy}.model"] = Loss(loss.value, filled=filled(own.weight), **told)
        return losses

    def _policy(self, policy: str, seen: Tree) -> Any:
        """The distributions of a policy's agents, stacked."""
        return self._head(policy, self.policy_inputs(seen, self.driven[policy]))

    def _head(self, policy: str, own: Tree) -> Any:
        parts = {name.removeprefix("model."): part for name, part in getattr(self, policy).items()}
        return self.heads[policy](parts, own, own)

    def _value(self, policy: str, everything: dict[str, Tree]) -> Any:
        """The values of a policy's agents, stacked."""
        own = self.policy_inputs(everything, self.driven[policy], identity=True)
        return getattr(self, policy)["model.critic"](own)[:, 0]

    def _everything(self, observation: Tree) -> dict[str, Tree]:
        """What the critic reads for each agent."""
        seen = self.critic_observation(self.normaliser(observation))
        return {name: {"all": seen, "there": present_for(observation, i)} for i, name in enumerate(self.agents)}
