"""Agents that act for several agents of one environment, and which policy drives which of these."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from etude import ops
from etude.agent import Agent
from etude.base import trees
from etude.base.data import SAMPLED_ACTION, Batch
from etude.base.errors import ConfigError, SpaceError
from etude.base.spaces import Dict, Discrete, Space, Spaces, describe
from etude.base.trees import Tree
from etude.multi_agent.joint import ACTIVE, AGENTS, STATE, state_space
from etude.networks import Normaliser, Part

EACH, SHARED = "each", "shared"
CRITIC_READS = ("observations", STATE)  # of all agents; or the environment's `state()`
IDENTITY = "agent"  # the key under which an observation says whose it is


@dataclass(frozen=True)
class Policies:
    """Which policy drives which agents of an environment.

    of: "each", a policy for each agent, of its name ("_" for each dot); "shared", one for all of them, named so; or the
        name of an agent's policy, by a dict or a function. Agents that share one must have the same spaces.
    identity: append to what an agent observes which of its policy's agents it is, as a one-hot vector.
    train_only: where a run is given a dict of policies, the names of those that learn, or `multi_agent.Alternate`;
        None: all that can.
    """

    of: str | Mapping[str, str] | Callable[[str], str] = EACH
    identity: bool = False
    train_only: Any = field(default=None, repr=False)

    @classmethod
    def given(cls, policies: Any) -> Policies:
        """From a `Policies`, or from what its `of` takes."""
        return policies if isinstance(policies, Policies) else cls(EACH if policies is None else policies)

    def names(self, agents: Mapping[str, Spaces]) -> dict[str, str]:
        """Agent -> policy. Raises ConfigError where that is not said for every agent, and SpaceError where agents of
        one policy have different spaces."""
        found: dict[str, str] = {}
        for agent in agents:
            found[agent] = self._name(agent, {*agents, *found.values()})
        if isinstance(self.of, Mapping) and set(self.of) - set(agents):
            unknown = ", ".join(sorted(set(self.of) - set(agents)))
            raise ConfigError(f"policies names {unknown}; the agents of this environment are {', '.join(agents)}.")
        for agent, policy in found.items():
            first = next(other for other, its in found.items() if its == policy)
            if agents[agent] != agents[first]:
                raise SpaceError(
                    f"The agents {first} and {agent} share the policy {policy!r} and have different spaces: "
                    f"{_told(agents[first])}, and {_told(agents[agent])}. Give them policies of their own: "
                    "policies='each', or a dict from agent to policy."
                )
        return found

    def driven(self, agents: Mapping[str, Spaces]) -> dict[str, tuple[str, ...]]:
        """Policy -> the agents that it drives, in their order."""
        names = self.names(agents)
        return {policy: tuple(a for a in names if names[a] == policy) for policy in dict.fromkeys(names.values())}

    def plain(self, agents: Mapping[str, Spaces]) -> dict[str, Any]:
        """As plain data, of which `Policies(**data)` makes the same."""
        return {"of": self.names(agents), "identity": self.identity}

    def _name(self, agent: str, taken: set[str]) -> str:
        if self.of == EACH:
            name = agent.replace(".", "_")  # a dot parts a policy from its networks
            while name != agent and name in taken:
                name += "_"
            return name
        if self.of == SHARED:
            return SHARED
        policy = self.of(agent) if callable(self.of) else self.of.get(agent) if isinstance(self.of, Mapping) else None
        if not isinstance(policy, str) or not policy or "." in policy:
            raise ConfigError(
                f"policies gives {policy!r} for the agent {agent!r}; expected the name of its policy, without a dot: "
                "'each', 'shared', or a dict or a function from each agent to a name."
            )
        return policy


class MultiAgent(Agent):
    """An agent that acts for several agents at once.

    `act` returns a tuple with one output for each agent, `value` [N, agents], both in the order of `spaces.agents`;
    observations, actions and batches are laid out as `joint` and `replay.several` tell. Its parts are named
    `policy.part`, and so are its losses.
    """

    policies: Policies = Policies()
    agents: dict[str, Spaces]  # set in `build`
    driven: dict[str, tuple[str, ...]]  # policy -> its agents; set in `build`
    normaliser: Normaliser  # set in `build`

    def give(self, policy: str, parts: Mapping[str, Part]) -> None:
        """Let the parts of a policy be parts of this agent: `policy.part`."""
        if policy in dir(self):
            raise ConfigError(f"A policy, or an agent, cannot be called {policy!r} here; choose another name.")
        setattr(self, policy, dict(parts))

    def with_policies(self, policies: Any) -> Self:
        """This agent with other policies; see `Policies`."""
        other = copy.copy(self)
        other.policies = Policies.given(policies)
        return other

    def act_alone(self, agent: str, observation: Tree) -> Any:
        """What `act` returns for one agent, of its own observation [N, ...]."""
        raise NotImplementedError

    def seen_alone(self, agent: str, observation: Tree) -> tuple[str, Tree]:
        """The policy of an agent, and what that is to read of the agent's own observation [N, ...]."""
        policy, names = next((policy, names) for policy, names in self.driven.items() if agent in names)
        seen = self.normaliser.part((AGENTS, agent), observation)
        return policy, identified(seen, names.index(agent)) if self.policies.identity and len(names) > 1 else seen

    def policy_space(self, space: Space, names: Sequence[str], identity: bool = False) -> Space:
        """The space of what a policy reads for each of its agents. identity: it always reads which one that is."""
        return identified_space(space, len(names)) if (identity or self.policies.identity) and len(names) > 1 else space

    def policy_inputs(self, seen: Mapping[str, Tree], names: Sequence[str], identity: bool = False) -> Tree:
        """What a policy reads for each of its agents, stacked, from what is seen by name."""
        parts = [seen[name] for name in names]
        if (identity or self.policies.identity) and len(names) > 1:
            parts = [identified(part, i) for i, part in enumerate(parts)]
        return stacked(parts)

    @property
    def reads_state(self) -> bool:
        """Whether its losses read the environment's global state, `state()`."""
        return False

    def check(self, spaces: Spaces) -> None:
        """Raise SpaceError or ConfigError where it cannot act for these agents."""

    def trained_by(self, part: str) -> str:
        return ".".join(part.split(".")[:2])


class CentralisedCritics(MultiAgent):
    """An agent whose critics read the observations of all agents, or the environment's global state: the field
    `critic_reads` of its config, one of `CRITIC_READS`."""

    @property
    def reads_state(self) -> bool:
        return self.config.critic_reads == STATE

    def critic_space(self, spaces: Spaces) -> Space:
        """The space of what critics read. SpaceError where there is no global state to read."""
        if self.reads_state and state_space(spaces) is None:
            raise SpaceError(
                f"critic_reads = 'state', and there is no global state in {describe(spaces.observation)}. Make the "
                "environments with it, as Run does, or give critic_reads='observations'."
            )
        return self.critic_observation(spaces.observation)

    def critic_observation(self, observation: Any) -> Any:
        """The part of joined observations that critics read."""
        return observation[STATE if self.reads_state else AGENTS]


def stacked(parts: list[Tree]) -> Tree:
    """Trees of arrays [B, ...], one below the other: [parts * B, ...]."""
    return parts[0] if len(parts) == 1 else trees.map(lambda *leaves: ops.concatenate(leaves, 0), *parts)


def unstacked(tree: Tree, parts: int) -> list[Tree]:
    """What was stacked, in parts of equal length."""
    rows = trees.leaves(tree)[0].shape[0] // parts
    return [trees.map(lambda leaf, i=i: leaf[i * rows : (i + 1) * rows], tree) for i in range(parts)]


def identified_space(space: Space, agents: int) -> Dict:
    """The space of `identified` observations."""
    inner = space.spaces if isinstance(space, Dict) else {"observation": space}
    if IDENTITY in inner:
        raise SpaceError(
            f"{describe(space)} has a key {IDENTITY!r}, which is where the agent's identity goes. Rename the key, or "
            "leave the identity out."
        )
    return Dict({**inner, IDENTITY: Discrete(agents)})


def identified(observation: Tree, number: int) -> Tree:
    """Observations [N, ...] of agent `number` of a policy, which say so."""
    inner = observation if isinstance(observation, dict) else {"observation": observation}
    leaf = trees.leaves(inner)[0]
    rows = leaf[(slice(None), *(0 for _ in leaf.shape[1:]))]
    return {**inner, IDENTITY: ops.cast(ops.zeros_like(rows), "int32") + number}


def average_weights(weight: Any, active: Any) -> Any:
    """Weights [B] of examples for what is active [B, m], stacked [m * B]: 0 where nothing is to be learned, and scaled
    so that a mean over all is a mean over those."""
    m = active.shape[1]
    share = ops.replica_mean(ops.sum(active)) / (active.shape[0] * m)
    return ops.concatenate([weight * active[:, i] for i in range(m)], 0) / ops.maximum(share, 1e-8)


def active_mean(x: Any, active: Any) -> Any:
    """The mean of x [B] over what is active [B], 1 or 0; 0 where nothing is. A scalar stays as it is."""
    if not len(getattr(x, "shape", ())):
        return x
    return ops.mean(ops.where(active > 0, x, 0.0)) / ops.maximum(ops.replica_mean(ops.mean(active)), 1e-8)


def filled(weight: Any) -> Any:
    """1 where any of these examples has a weight, else 0: see `Loss`."""
    return ops.cast(ops.replica_mean(ops.mean(weight)) > 0, "float32")


def stacked_batch(batch: Batch, places: Sequence[int], own: Mapping[str, Any]) -> Batch:
    """The examples of the agents at these places of a batch of several, [B, agents], one below the other. own: their
    observations, actions (samples, where they were kept) and next observations, stacked."""

    def pick(array: Any) -> Any:
        return stacked([array[:, i] for i in places])

    return Batch(
        reward=pick(batch.reward),
        discount=pick(batch.discount),
        weight=average_weights(batch.weight, ops.stack([batch.extras[ACTIVE][:, i] for i in places], 1)),
        index=batch.index,
        extras={name: pick(array) for name, array in batch.extras.items() if name not in (ACTIVE, SAMPLED_ACTION)},
        **own,
    )


def _told(spaces: Spaces) -> str:
    return f"observations {describe(spaces.observation)} and actions {describe(spaces.action)}"
