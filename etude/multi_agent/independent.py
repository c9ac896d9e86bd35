"""Several agents that learn each for itself, or share policies, by an algorithm for one agent.

Tan 1993, "Multi-agent reinforcement learning: independent vs. cooperative agents"; sharing parameters: Gupta, Egorov &
Kochenderfer 2017, doi:10.1007/978-3-319-71682-4_5.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.base.data import Batch
from etude.base.spaces import Space, Spaces
from etude.base.trees import Tree
from etude.multi_agent.joint import AGENTS, split_actions
from etude.multi_agent.policies import MultiAgent, active_mean, filled, stacked, stacked_batch, unstacked
from etude.networks import Maker
from etude.networks.network import Normaliser, parts_of, put_part
from etude.protocols import Weights


class Independent(MultiAgent):
    """One agent of an algorithm for each policy. Its losses are computed on the transitions of the agents that it
    drives, stacked."""

    def __init__(self, prototype: Agent):
        super().__init__(prototype.config)
        self.prototype = prototype
        # Instance attributes, because they are the prototype's and not the class's.
        self.acts_by = prototype.acts_by  # type: ignore[misc]
        self.learns_from = prototype.learns_from  # type: ignore[misc]

    def acts_for(self, action: Space) -> ActsBy:
        return self.prototype.acts_by

    def build(self, make: Maker, spaces: Spaces) -> None:
        assert spaces.agents is not None
        self.agents: dict[str, Spaces] = spaces.agents
        self.driven: dict[str, tuple[str, ...]] = self.policies.driven(spaces.agents)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.built: dict[str, Agent] = {}
        for policy in self.driven:
            own = self.built[policy] = copy.copy(self.prototype)
            own.config = dataclasses.replace(self.config, normalize_observation=False)  # done here, for all of them
            own.before_build()
            names = self.driven[policy]
            one = spaces.agents[names[0]]  # all agents of a policy have the same spaces
            own.build(make, Spaces(self.policy_space(one.observation, names), one.action))
            self.give(policy, parts_of(own))
            for name in parts_of(own):
                put_part(own, name, None)  # `_of` gives it those that this agent is bound to
            many = len(names)
            self.noise.update({f"{policy}.{name}": (many, *shape) for name, shape in own.noise.items()})
            self.batch_noise.update({f"{policy}.{name}": shape for name, shape in own.batch_noise.items()})
            self.trained_every.update({f"{policy}.{name}": field for name, field in own.trained_every.items()})
            self.trust_regions |= {f"{policy}.{name}" for name in own.trust_regions}

    def act(self, observation: Tree) -> tuple[Any, ...]:
        return tuple(self._by_agent(observation, lambda agent, seen: agent.act(seen)))

    def _by_agent(self, observation: Tree, function: Callable[[Any, Any], Any]) -> list[Any]:
        """What `function` makes of a policy and the inputs of its agents, for each agent."""
        seen = self.normaliser(observation)[AGENTS]
        found: dict[str, Any] = {}
        for policy, names in self.driven.items():
            output = function(self._of(policy), self.policy_inputs(seen, names))
            found |= dict(zip(names, unstacked(output, len(names)), strict=True))
        return [found[name] for name in self.agents]

    def act_alone(self, agent: str, observation: Tree) -> Any:
        policy, seen = self.seen_alone(agent, observation)
        return self._of(policy).act(seen)

    def value(self, observation: Tree) -> Any:
        return ops.stack(self._by_agent(observation, lambda agent, seen: agent.value(seen)), -1)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        losses, error = Losses(), 0.0
        for policy, (own_batch, own_noise) in self._batches(batch, noise).items():
            found = self._of(policy).loss(own_batch, own_noise)
            errors = next((loss.td_error for loss in found.values() if loss.td_error is not None), None)
            active = ops.cast(own_batch.weight > 0, "float32")
            if errors is not None:
                error = error + sum(unstacked(ops.abs(errors) * active, len(self.driven[policy])))
            for part, loss in found.items():
                metrics = {f"{policy}.{name}": active_mean(x, active) for name, x in loss.metrics.items()}
                losses[f"{policy}.{part}"] = Loss(
                    loss.value, filled=filled(own_batch.weight), policy=loss.policy, **metrics
                )
        if not isinstance(error, float):
            next(iter(losses.values())).td_error = error / len(self.agents)
        return losses

    def transform_gradient(self, loss: str, gradient: Any) -> Any:
        policy, _, part = loss.partition(".")
        return self._of(policy).transform_gradient(part, gradient)

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        moved: Weights = {}
        for policy in self.built:
            start = f"{policy}."

            def read_own(names: Iterable[str], start: str = start) -> Weights:
                return {name.removeprefix(start): x for name, x in read([start + name for name in names]).items()}

            told = {name.removeprefix(start): x for name, x in metrics.items() if name.startswith(start)}
            moved |= {start + name: x for name, x in self._of(policy).after_phase(read_own, told).items()}
        return moved

    def _batches(self, batch: Batch, noise: dict[str, Any]) -> dict[str, tuple[Batch, dict[str, Any]]]:
        """The examples and the noise of each policy."""
        seen, following = self.normaliser(batch.observation)[AGENTS], None
        if batch.next_observation is not None:
            following = self.normaliser(batch.next_observation)[AGENTS]
        actions, order, found = split_actions(self.agents, batch.sampled_action), list(self.agents), {}
        for policy, names in self.driven.items():
            own = {
                "observation": self.policy_inputs(seen, names),
                "action": stacked([actions[name] for name in names]),
                "next_observation": None if following is None else self.policy_inputs(following, names),
            }
            start = f"{policy}."
            drawn = {name.removeprefix(start): each for name, each in noise.items() if name.startswith(start)}
            of_batch = self.built[policy].batch_noise
            found[policy] = (
                stacked_batch(batch, [order.index(name) for name in names], own),
                {
                    name: each if name in of_batch else stacked([each[:, i] for i in range(len(names))])
                    for name, each in drawn.items()
                },
            )
        return found

    def _of(self, policy: str) -> Agent:
        """The policy's agent with the parts and the hyperparameters that this one is bound to."""
        own = copy.copy(self.built[policy])
        own.config = self.config
        for name, part in getattr(self, policy).items():
            put_part(own, name, part)
        return own
