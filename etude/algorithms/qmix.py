"""Values of several agents that add up to, or are mixed into, the value of what they do together: VDN and QMIX.

QMIX: Rashid et al. 2018, Monotonic value function factorisation for deep multi-agent reinforcement learning,
arXiv:1803.11485, section 4. VDN: Sunehag et al. 2017, Value-decomposition networks for cooperative multi-agent
learning, arXiv:1706.05296, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from etude import ops
from etude.agent import ActsBy, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import SpaceError
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.masks import best_action, masked
from etude.losses.value import squared, td
from etude.multi_agent.joint import ACTING, ACTIVE, AGENTS, STATUS, TRUNCATED, present, split_actions
from etude.multi_agent.policies import CRITIC_READS, CentralisedCritics, average_weights, filled, unstacked
from etude.networks import Maker, Mlp, Normaliser, Spec, target

MIXERS = ("monotonic", "sum")


@dataclass(frozen=True)
class QMIXConfig(OffPolicyConfig):
    """Hyperparameters of QMIX, besides those of every off-policy algorithm."""

    network: Spec = Mlp((64, 64))  # Q-network of each policy
    learning_rate: float | Linear = 5e-4
    max_gradient_norm: float | None = 10.0
    batch_size: int = 128
    mixer: Literal["monotonic", "sum"] = "monotonic"  # of the agents' values: QMIX's network, or VDN's sum
    mixing_units: int = 32  # hidden units of the mixing network
    hypernetwork: Spec = Mlp((64,))  # from what the mixing network reads to each of its weights
    critic_reads: Literal["observations", "state"] = "observations"  # the mixing network: of all agents, or state()
    double: bool = True  # double Q-learning: the online networks select next actions, the target networks value them
    target_update_every: int = 200  # gradient steps between two updates of the target networks
    epsilon: float | Linear = Linear(1.0, 0.05, 0.1)  # probability of a random action of each agent

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon")
        checks.counts(self, "mixing_units", "target_update_every")
        checks.one_of(self, "mixer", MIXERS)
        checks.one_of(self, "critic_reads", CRITIC_READS)


@dataclass(frozen=True)
class VDNConfig(QMIXConfig):
    """Hyperparameters of VDN: those of QMIX with another mixer."""

    mixer: Literal["monotonic", "sum"] = "sum"  # of the agents' values: QMIX's network, or VDN's sum


class QMIX(CentralisedCritics):
    """For each policy values of an agent's own actions, and one value of what all do, which rises with each of them:
    the agents' best actions are best together. All learn from the mean reward of the agents that act."""

    acts_by: ClassVar[ActsBy] = "values"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    @property
    def reads_state(self) -> bool:
        return self.config.mixer != "sum" and super().reads_state

    def check(self, spaces: Spaces) -> None:
        if spaces.turns:
            raise SpaceError(
                "QMIX and VDN value the simultaneous actions of all agents; in this environment they take turns. "
                "Use dqn or ppo."
            )

    def build(self, make: Maker, spaces: Spaces) -> None:
        assert spaces.agents is not None
        config = self.config
        self.agents: dict[str, Spaces] = spaces.agents
        self.driven: dict[str, tuple[str, ...]] = self.policies.driven(spaces.agents)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        for policy, names in self.driven.items():
            own = self.agents[names[0]]
            q = make.values(config.network, self.policy_space(own.observation, names), int(own.action.n))
            self.give(policy, {"q": q, "q_target": target(q, every="target_update_every")})
            drawn = (f"{policy}.{name}" for name in ("q", "q_target", "next_q"))
            self.batch_noise.update(dict.fromkeys(drawn, (q.noise_size,)))
        if config.mixer == "sum":
            return
        there = Box(0.0, 1.0, (len(self.agents),), np.float32)
        everything, units = (self.critic_space(spaces), there), config.mixing_units
        sizes = {"weight": len(self.agents) * units, "bias": units, "last_weight": units, "last_bias": 1}
        mixer = {name: make(config.hypernetwork, everything, outputs=size) for name, size in sizes.items()}
        self.give("mixer", mixer)
        follower = {name: target(part, every="target_update_every") for name, part in mixer.items()}
        self.give("mixer_target", follower)

    def trained_by(self, part: str) -> str:
        return "q"  # one loss trains all of them

    def act(self, observation: Tree) -> tuple[Any, ...]:
        q = self._values("q", self.normaliser.part((AGENTS,), observation[AGENTS]))
        return tuple(self._of(name, q[name], observation[AGENTS][name]) for name in self.agents)

    def act_alone(self, agent: str, observation: Tree) -> Any:
        policy, seen = self.seen_alone(agent, observation)
        return self._of(agent, getattr(self, policy)["q"](seen), observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        seen, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)
        active, actions = batch.extras[ACTIVE], split_actions(self.agents, batch.action)
        q = self._values("q", seen[AGENTS], noise)
        next_q = self._values("q_target", following[AGENTS], noise, "q_target")
        selector = self._values("q", following[AGENTS], noise, "next_q") if self.config.double else next_q
        chosen, best = [], []
        for name in self.agents:
            allowed = self._of(name, selector[name], batch.next_observation[AGENTS][name])
            chosen.append(ops.take_last(q[name], actions[name]))
            best.append(ops.take_last(next_q[name], best_action(allowed)))
        total = self._mixed("mixer", ops.stack(chosen, -1), active, seen, present(batch.observation))
        here = self.going_on(batch.next_observation)
        next_total = self._mixed("mixer_target", ops.stack(best, -1), here, following, here)

        # The team's reward is the mean of its agents'; it goes on while one of them does
        acted = ops.sum(active, -1)
        reward = ops.sum(batch.reward * active, -1) / ops.maximum(acted, 1.0)
        error = td(total, reward, ops.max(batch.discount * active, -1), next_total)
        some = ops.cast(acted > 0, "float32")
        weight = average_weights(batch.weight, ops.expand_dims(some, -1))
        share = ops.maximum(ops.replica_mean(ops.mean(some)), 1e-8)
        loss = ops.mean(weight * squared(error))
        return Losses(
            q=Loss(loss, td_error=error * some, filled=filled(weight), q_value=ops.mean(total * some) / share)
        )

    def _values(self, part: str, seen: Tree, noise: Any = None, drawn: str = "q") -> dict[str, Any]:
        """What each agent's actions are worth to its policy's network of this name, [B, n]."""
        found: dict[str, Any] = {}
        for policy, names in self.driven.items():
            q = getattr(self, policy)[part]
            q = q if noise is None else q.perturbed(noise[f"{policy}.{drawn}"])
            found |= dict(zip(names, unstacked(q(self.policy_inputs(seen, names)), len(names)), strict=True))
        return found

    def _of(self, agent: str, values: Any, observation: Tree) -> Any:
        """Values [B, n] with the mask of an agent's observations, where there is one."""
        return masked(values, observation[ACTION_MASK]) if self.agents[agent].masked else values

    def _mixed(self, mixer: str, q: Any, counted: Any, seen: Tree, here: Any) -> Any:
        """The value [B] of what all do, from the values [B, agents] of those that count; equations 4 to 6.

        here: [B, agents], which of them the mixing network sees act.
        """
        q = q * counted
        if self.config.mixer == "sum":
            return ops.sum(q, -1)
        everything = self.critic_observation(seen), here
        made = {name: part(everything) for name, part in getattr(self, mixer).items()}
        weight = ops.reshape(ops.abs(made["weight"]), (-1, len(self.agents), self.config.mixing_units))
        hidden = ops.elu(ops.sum(ops.expand_dims(q, -1) * weight, 1) + made["bias"])
        return ops.sum(hidden * ops.abs(made["last_weight"]), -1) + made["last_bias"][:, 0]

    @staticmethod
    def going_on(following: Tree) -> Any:
        """Which agents the value after a step is that of, [B, agents]: those that act, or would, where time ran out for
        all that were left."""
        acting, cut = (ops.cast(following[STATUS] == status, "float32") for status in (ACTING, TRUNCATED))
        return acting + (1.0 - ops.max(acting, -1, keepdims=True)) * cut
