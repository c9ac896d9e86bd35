"""Multi-agent deep deterministic policy gradients: each agent acts on what it sees, judged by critics that see all.

MADDPG: Lowe et al. 2017, arXiv:1706.02275, equation 6 and the appendix. MATD3: Ackermann et al. 2019, arXiv:1910.01465,
with the two critics and the smoothed targets of Fujimoto et al. 2018, arXiv:1802.09477.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from etude.losses.policy import deterministic_policy_gradient, smoothed
from etude.losses.relaxed import gumbel, gumbel_softmax
from etude.losses.soft import lowest
from etude.losses.value import squared, td
from etude.multi_agent.joint import ACTIVE, AGENTS, present, split_actions, width
from etude.multi_agent.policies import MultiAgent, average_weights
from etude.networks import Maker, Mlp, Spec, target


@dataclass(frozen=True)
class MADDPGConfig(OffPolicyConfig):
    """Hyperparameters of MADDPG, besides those of every off-policy algorithm."""

    network: Spec = Mlp((64, 64))  # of each actor, and of each critic
    learning_rate: float | Linear = 1e-3
    gamma: float = 0.95
    max_gradient_norm: float | None = 0.5
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.01  # after every gradient step the target networks move this part of the way
    critics: int = 1  # of each agent; the lowest of their values is the target
    target_noise: float = 0.0  # deviation of the noise on Box actions of the target policies
    target_noise_clip: float = 0.5  # where that noise is clipped
    policy_delay: int = 1  # gradient steps of the critics for one of the actors, and of what lags
    relaxation: float = 1.0  # temperature of the Gumbel-softmax through which Discrete actions are learned
    policy_cost: float = 1e-3  # weight of the mean square of what actors put out, before it becomes actions
    random_steps: int = 0  # environment steps at the start whose Box actions are uniformly random
    exploration_noise: float | Linear = 0.1  # deviation of the noise on Box actions; Discrete ones are sampled

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.counts(self, "critics", "policy_delay")
        checks.not_negative(self, "target_noise", "target_noise_clip", "policy_cost")
        checks.not_negative(self, "random_steps", "exploration_noise")
        checks.positive(self, "relaxation")


@dataclass(frozen=True)
class MATD3Config(MADDPGConfig):
    """Hyperparameters of MATD3: those of MADDPG with other defaults."""

    critics: int = 2  # of each agent; the lowest of their values is the target
    target_noise: float = 0.2  # deviation of the noise on Box actions of the target policies
    policy_delay: int = 2  # gradient steps of the critics for one of the actors, and of what lags


class MADDPG(MultiAgent):
    """For each agent an actor on its own observation, and critics of all observations and actions."""

    acts_by = "actions"
    actions = (Discrete, Box)

    def acts_for(self, action: Space) -> ActsBy:
        return "actions" if isinstance(action, Box) else "distribution"

    def check(self, spaces: Spaces) -> None:
        assert spaces.agents is not None
        if spaces.turns:
            raise SpaceError(
                "MADDPG judges what all agents do at once; in this environment they take turns. Use dqn or ppo."
            )
        if any(len(names) > 1 for names in self.policies.driven(spaces.agents).values()):
            raise ConfigError("MADDPG trains a policy for each agent; leave policies= out, or share them with mappo.")

    def build(self, make: Maker, spaces: Spaces) -> None:
        assert spaces.agents is not None
        config, self.agents = self.config, spaces.agents
        self.normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.sizes = {name: _size(own.action) for name, own in self.agents.items()}
        everything = (
            spaces.observation[AGENTS],
            Box(-1.0, 1.0, (sum(self.sizes.values()),), np.float32),
            Box(0.0, 1.0, (len(self.agents),), np.float32),
        )
        for name, own in self.agents.items():
            actor = make(config.actor_network, own.observation, outputs=self.sizes[name])
            critic = make(config.critic_network, everything, outputs=1, members=config.critics)
            late = {f"{key}_target": target(part, tau="tau", every="policy_delay")
                    for key, part in (("actor", actor), ("critic", critic))}  # fmt: skip
            self.give(name, {"actor": actor, "critic": critic, **late})
            self.trained_every[f"{name}.actor"] = "policy_delay"
            shape = (2, self.sizes[name]) if isinstance(own.action, Discrete) else (self.sizes[name],)
            self.noise |= {f"{name}.action": shape, f"{name}.next_action": shape}

    def act(self, observation: Tree) -> tuple[Any, ...]:
        seen, found = self.normaliser(observation)[AGENTS], []
        for name, own in self.agents.items():
            x = self._policy(name, "actor", seen)
            if isinstance(own.action, Box):
                found.append(Deterministic(ops.tanh(x)))
            else:
                found.append(Categorical(*x) if isinstance(x, MaskedValues) else Categorical(x))
        return tuple(found)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        observation, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)
        here, there = present(observation), present(following)
        taken = self._taken(batch.action)
        next_actions = {name: self._target_action(name, following[AGENTS], noise) for name in self.agents}
        now, after = self._joined(observation, taken, here), self._joined(following, next_actions, there)
        losses, errors = Losses(), 0.0
        for i, name in enumerate(self.agents):
            parts, active = getattr(self, name), batch.extras[ACTIVE][:, i : i + 1]
            weight = average_weights(batch.weight, active)

            next_q = lowest(parts["critic_target"](after)[:, :, 0])
            q = parts["critic"](now)[:, :, 0]
            error = td(q, batch.reward[:, i], batch.discount[:, i], next_q)
            critic = ops.mean(weight * ops.sum(squared(error), 0))
            errors = errors + ops.mean(ops.abs(error), 0) * active[:, 0]

            x = self._policy(name, "actor", observation[AGENTS])
            chosen = {**taken, name: self._relaxed(name, x, noise[f"{name}.action"])}
            judged = parts["critic"].member(0)(self._joined(observation, chosen, here))[:, 0]
            cost = self.config.policy_cost * _mean_square(x)
            actor = ops.mean(weight * (deterministic_policy_gradient(judged) + cost))

            losses[f"{name}.critic"] = Loss(critic, **{f"{name}.q_value": ops.mean(q)})
            losses[f"{name}.actor"] = Loss(actor)
        next(iter(losses.values())).td_error = errors / len(self.agents)
        return losses

    def _policy(self, name: str, actor: str, seen: Tree) -> Any:
        """What an actor puts out: logits, with their mask where there is one, or actions before tanh."""
        x = getattr(self, name)[actor](seen[name])
        return masked(x, seen[name][ACTION_MASK]) if self.agents[name].masked else x

    def _relaxed(self, name: str, x: Any, noise: Any) -> Any:
        """An action as critics see it, with a gradient into the actor."""
        if isinstance(self.agents[name].action, Box):
            return ops.tanh(x)
        return gumbel_softmax(x, gumbel(noise), self.config.relaxation)

    def _target_action(self, name: str, seen: Tree, noise: dict[str, Any]) -> Any:
        drawn = noise[f"{name}.next_action"]
        action = self._relaxed(name, self._policy(name, "actor_target", seen), drawn)
        if isinstance(self.agents[name].action, Box):
            action = smoothed(action, drawn, self.config.target_noise, self.config.target_noise_clip)
        return action

    def _taken(self, action: Any) -> dict[str, Any]:
        """Actions as critics see them: one-hot vectors, or numbers."""
        own = split_actions(self.agents, action)
        return {
            name: ops.one_hot(own[name], self.sizes[name]) if isinstance(spaces.action, Discrete) else own[name]
            for name, spaces in self.agents.items()
        }

    def _joined(self, observation: Tree, actions: dict[str, Any], here: Any) -> Tree:
        """What critics see; the action of an agent that is gone is 0."""
        masked = [actions[name] * here[:, i : i + 1] for i, name in enumerate(self.agents)]
        return observation[AGENTS], ops.concatenate(masked, -1), here


def _mean_square(x: Any) -> Any:
    """Of what an actor puts out, [B, n] -> [B]; what is forbidden counts as 0."""
    square = ops.square(x.values if isinstance(x, MaskedValues) else x)
    return ops.mean(ops.where(x.allowed, square, 0.0) if isinstance(x, MaskedValues) else square, -1)


def _size(action: Any) -> int:
    return int(action.n) if isinstance(action, Discrete) else width(action)
