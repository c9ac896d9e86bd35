"""Multi-agent deep deterministic policy gradients: decentralised actors, centralised critics.

MADDPG: Lowe et al. 2017, arXiv:1706.02275, equation 6 and the appendix. MATD3: Ackermann et al. 2019, arXiv:1910.01465,
with the two critics and the smoothed targets of Fujimoto et al. 2018, arXiv:1802.09477.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from etude import ops
from etude.agent import ActsBy, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError, SpaceError
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Box, Discrete, Space, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Categorical, Deterministic
from etude.losses.masks import MaskedValues, masked
from etude.losses.policy import deterministic_policy_gradient, gumbel, gumbel_softmax, smoothed
from etude.losses.soft import minimum
from etude.losses.value import squared, td
from etude.multi_agent.joint import ACTIVE, AGENTS, present, present_for, split_actions, width
from etude.multi_agent.policies import CRITIC_READS, CentralisedCritics, active_mean, average_weights, filled
from etude.networks import Maker, Mlp, Normaliser, Spec, target


@dataclass(frozen=True)
class MADDPGConfig(OffPolicyConfig):
    """Hyperparameters of MADDPG, besides those of every off-policy algorithm."""

    network: Spec = Mlp((64, 64))  # actor and critic networks of each agent
    learning_rate: float | Linear = 1e-3
    gamma: float = 0.95
    max_gradient_norm: float | None = 0.5
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.01  # Polyak rate of the target networks, applied at every update of the actors
    critics: int = 1  # critics of each agent; targets use the minimum of their values
    target_noise: float = 0.0  # Box actions: standard deviation of the noise on target actions
    target_noise_clip: float = 0.5  # clip range of that noise
    policy_delay: int = 1  # gradient steps of the critics for each one of the actors and target networks
    relaxation: float = 1.0  # Discrete actions: temperature of the Gumbel-softmax
    critic_reads: Literal["observations", "state"] = "observations"  # of all agents, or the environment's state()
    policy_cost: float = 1e-3  # weight of the mean squared logits, or actions before tanh, in the actors' loss
    random_steps: int = 0  # Box actions: environment steps of uniformly random actions before the policies act
    exploration_noise: float | Linear = 0.1  # Box actions: standard deviation of the Gaussian exploration noise

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.counts(self, "critics", "policy_delay")
        checks.not_negative(self, "target_noise", "target_noise_clip", "policy_cost")
        checks.not_negative(self, "random_steps", "exploration_noise")
        checks.positive(self, "relaxation")
        checks.one_of(self, "critic_reads", CRITIC_READS)


@dataclass(frozen=True)
class MATD3Config(MADDPGConfig):
    """Hyperparameters of MATD3: those of MADDPG with other defaults."""

    critics: int = 2  # critics of each agent; targets use the minimum of their values
    target_noise: float = 0.2  # Box actions: standard deviation of the noise on target actions
    policy_delay: int = 2  # gradient steps of the critics for each one of the actors and target networks


class MADDPG(CentralisedCritics):
    """For each agent an actor of its own observation, and critics of the observations and actions of all agents, or of
    the environment's state and these actions."""

    acts_by: ClassVar[ActsBy] = "actions"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete, Box)
    bounded_actions = True

    def acts_for(self, action: Space) -> ActsBy:
        return "actions" if isinstance(action, Box) else "distribution"

    def check(self, spaces: Spaces) -> None:
        assert spaces.agents is not None
        if spaces.turns:
            raise SpaceError(
                f"{self}'s critics take the simultaneous actions of all agents; in this environment they take turns. "
                "Use dqn or ppo."
            )
        if any(len(names) > 1 for names in self.policies.driven(spaces.agents).values()):
            raise ConfigError(f"{self} trains a policy for each agent; leave policies= out, or share them with mappo.")

    def build(self, make: Maker, spaces: Spaces) -> None:
        assert spaces.agents is not None
        config, names = self.config, self.policies.names(spaces.agents)
        self.agents: dict[str, Spaces] = {names[agent]: own for agent, own in spaces.agents.items()}
        self.agent_of: dict[str, str] = {policy: agent for agent, policy in names.items()}
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.sizes: dict[str, int] = {
            name: (int(own.action.n) if isinstance(own.action, Discrete) else width(own.action))
            for name, own in self.agents.items()
        }
        everything = (
            self.critic_space(spaces),
            Box(-1.0, 1.0, (sum(self.sizes.values()),), np.float32),
            Box(0.0, 1.0, (len(self.agents),), np.float32),
        )
        for name, own in self.agents.items():
            actor = make(config.actor_network, own.observation, outputs=self.sizes[name])
            critic = make(config.critic_network, everything, outputs=1, members=config.critics)
            targets = {f"{key}_target": target(part, tau="tau", every="policy_delay")
                       for key, part in (("actor", actor), ("critic", critic))}  # fmt: skip
            self.give(name, {"actor": actor, "critic": critic, **targets})
            self.trained_every[f"{name}.actor"] = "policy_delay"
            shape = (2, self.sizes[name]) if isinstance(own.action, Discrete) else (self.sizes[name],)
            self.noise.update({f"{name}.action": shape, f"{name}.next_action": shape})

    def act(self, observation: Tree) -> tuple[Any, ...]:
        seen = self.normaliser.part((AGENTS,), observation[AGENTS])
        return tuple(self._acting(name, seen) for name in self.agents)

    def act_alone(self, agent: str, observation: Tree) -> Any:
        name = next(policy for policy, own in self.agent_of.items() if own == agent)
        return self._acting(name, {agent: self.normaliser.part((AGENTS, agent), observation)})

    def _acting(self, name: str, seen: Tree) -> Any:
        """The distribution of a policy's action."""
        x = self._policy(name, "actor", seen)
        if isinstance(self.agents[name].action, Box):
            return Deterministic(ops.tanh(x))
        return Categorical(*x) if isinstance(x, MaskedValues) else Categorical(x)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        observation, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)
        here = present(observation)
        actions = self._recorded(batch.action)
        next_actions = {name: self._target_action(name, following[AGENTS], noise) for name in self.agents}
        state = self._joined(observation, actions, here)
        losses, errors = Losses(), 0.0
        for i, name in enumerate(self.agents):
            active = batch.extras[ACTIVE][:, i : i + 1]
            weight = average_weights(batch.weight, active)
            next_state = self._joined(following, next_actions, present_for(following, i))
            error, losses[f"{name}.critic"] = self.critic_loss(name, batch, weight, state, next_state)
            errors = errors + ops.mean(ops.abs(error), 0) * active[:, 0]

            x = self._policy(name, "actor", observation[AGENTS])
            own = {**actions, name: self._relaxed(name, x, noise[f"{name}.action"])}
            losses[f"{name}.actor"] = self.actor_loss(name, weight, x, self._joined(observation, own, here))
        next(iter(losses.values())).td_error = errors / len(self.agents)
        return losses

    def critic_loss(self, name: str, batch: Batch, weight: Any, state: Tree, next_state: Tree) -> tuple[Any, Loss]:
        """The errors [critics, B] of an agent's critics to the smallest target value, and their loss. Equation 6.

        weight: [B], of the transitions for this agent. state, next_state: inputs of critics, with the recorded actions
        and with those of the target policies.
        """
        parts, i = getattr(self, name), list(self.agents).index(name)
        next_q = minimum(parts["critic_target"](next_state)[:, :, 0])
        q = parts["critic"](state)[:, :, 0]
        error = td(q, batch.reward[:, i], batch.discount[:, i], next_q)
        loss = ops.mean(weight * ops.sum(squared(error), 0))
        told = {f"{name}.q_value": active_mean(ops.mean(q, 0), batch.extras[ACTIVE][:, i])}
        return error, Loss(loss, filled=filled(weight), **told)

    def actor_loss(self, name: str, weight: Any, x: Any, state: Tree) -> Loss:
        """The deterministic policy gradient through an agent's first critic, plus a cost on the actor's outputs x.
        Equation 5. state: with the policy's own action."""
        q = getattr(self, name)["critic"].member(0)(state)[:, 0]
        # The mean squared output of an actor, [B, n] -> [B]; forbidden actions count as 0
        square = ops.square(x.values if isinstance(x, MaskedValues) else x)
        cost = self.config.policy_cost * ops.mean(
            ops.where(x.allowed, square, 0.0) if isinstance(x, MaskedValues) else square, -1
        )
        return Loss(ops.mean(weight * (deterministic_policy_gradient(q) + cost)), filled=filled(weight))

    def _policy(self, name: str, actor: str, seen: Tree) -> Any:
        """The outputs of an actor: logits, with their mask where there is one, or actions before tanh."""
        own = seen[self.agent_of[name]]
        x = getattr(self, name)[actor](own)
        return masked(x, own[ACTION_MASK]) if self.agents[name].masked else x

    def _relaxed(self, name: str, x: Any, noise: Any) -> Any:
        """An action as critics take it, with a gradient into the actor."""
        if isinstance(self.agents[name].action, Box):
            return ops.tanh(x)
        return gumbel_softmax(x, gumbel(noise), self.config.relaxation)

    def _target_action(self, name: str, seen: Tree, noise: dict[str, Any]) -> Any:
        drawn = noise[f"{name}.next_action"]
        action = self._relaxed(name, self._policy(name, "actor_target", seen), drawn)
        if isinstance(self.agents[name].action, Box):
            action = smoothed(action, drawn, self.config.target_noise, self.config.target_noise_clip)
        return action

    def _recorded(self, action: Any) -> dict[str, Any]:
        """Recorded actions as critics take them: one-hot vectors, or numbers."""
        own = split_actions(self.agents, action)
        return {
            name: ops.one_hot(own[name], self.sizes[name]) if isinstance(spaces.action, Discrete) else own[name]
            for name, spaces in self.agents.items()
        }

    def _joined(self, observation: Tree, actions: dict[str, Any], here: Any) -> Tree:
        """The input of critics: observations or the state, actions (0 where an agent is not there), and which agents
        are there."""
        masked = [actions[name] * here[:, i : i + 1] for i, name in enumerate(self.agents)]
        return self.critic_observation(observation), ops.concatenate(masked, -1), here
