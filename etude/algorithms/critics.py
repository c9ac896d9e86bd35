"""Ensembles of action-value networks whose minimum is bootstrapped from: twin critics, or more.

Fujimoto, van Hoof & Meger 2018, Addressing function approximation error in actor-critic methods, arXiv:1802.09477,
section 4.2. Of more than two, a random subset: Chen et al. 2021, Randomized ensembled double Q-learning (REDQ),
arXiv:2101.05982, algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

from etude import ops
from etude.agent import Loss
from etude.base.spaces import Discrete, Spaces
from etude.base.trees import Tree
from etude.losses.soft import minimum, subset_minimum
from etude.losses.value import squared
from etude.networks import Maker, Part, Spec
from etude.networks.layers import Record


class _Networks(Part):
    """Networks of one kind as one part, with the names of their variables."""

    def __init__(self, networks: Part):
        self._networks = networks
        self.variables, self.frozen, self.noise = networks.variables, networks.frozen, networks.noise
        self.portable: bool = networks.portable
        self.dropout: int = networks.dropout
        self.projected: tuple[str, ...] = networks.projected

    def bound(self, variables: Mapping[str, Any], training: bool = False) -> Self:
        part = super().bound(variables, training)
        part._networks = self._networks.bound(variables, training)
        return part

    @property
    def architectures(self) -> Mapping[str, Any]:
        return self._networks.architectures

    def recording(self, record: Record) -> Part:
        part = copy.copy(self)
        part._networks = self._networks.recording(record)
        return part

    def _outputs(self, inputs: Tree) -> Any:
        outputs = self._networks(inputs)
        self.variables, self.moved = self._networks.variables, self._networks.moved
        return outputs


class CriticEnsemble(_Networks):
    """E critics of observations [B, ...] and Box actions [B, A]; two if not said otherwise."""

    members: int  # E

    @classmethod
    def make(cls, make: Maker, spec: Spec, spaces: Spaces, members: int = 2, outputs: int = 1) -> Self:
        part = cls(make(spec, (spaces.observation, spaces.action), outputs, members))
        part.members = members
        return part

    def __call__(self, observation: Tree = None, action: Any = None) -> Any:
        """The values of actions by all critics: [E, B]."""
        return self._outputs((observation, action))[:, :, 0]

    def minimum(self, observation: Tree, action: Any) -> Any:
        """The smallest value of each action: [B]."""
        return minimum(self(observation, action))

    def minimum_of_subset(self, observation: Tree, action: Any, noise: Any, size: int) -> Any:
        """The smallest value of each action by `size` critics, which all actions share: [B]. noise: [E] independent
        numbers of one distribution; the critics with the smallest ones are taken."""
        return subset_minimum(self(observation, action), noise, size)

    def mean(self, observation: Tree, action: Any) -> Any:
        """The mean value of each action: [B]."""
        return ops.mean(self(observation, action), 0)

    def action_gradients(self, observation: Tree, action: Any) -> Any:
        """The gradient of each critic's value by the action, to be differentiated by the weights: [E, B, A]."""
        members = [self._networks.member(i) for i in range(self.members)]
        return ops.stack([ops.gradient(lambda x, q=q: q((observation, x)), action) for q in members])  # type: ignore[misc]

    def first(self, observation: Tree, action: Any) -> Any:
        """The values of actions by the first critic alone: [B]."""
        return self._networks.member(0)((observation, action))[:, 0]


class DiscreteTwinCritic(_Networks):
    """Two critics of observations [B, ...] with a value for each of n Discrete actions."""

    @classmethod
    def make(cls, make: Maker, spec: Spec, spaces: Spaces) -> DiscreteTwinCritic:
        return cls(make(spec, spaces.observation, outputs=int(spaces.action.n), members=2))

    def __call__(self, observation: Tree = None, action: Any = None) -> Any:
        """The values of actions [B] by both critics: [2, B]."""
        return self.of(self.all(observation), action)

    def all(self, observation: Tree) -> Any:
        """The values of every action by both critics: [2, B, n]."""
        return self._outputs(observation)

    @staticmethod
    def of(values: Any, action: Any) -> Any:
        """The values [2, B] of actions [B] among those of every action [2, B, n]."""
        return ops.stack([ops.take_last(values[i], action) for i in (0, 1)])

    def minimum(self, observation: Tree, action: Any) -> Any:
        """The smaller value of each action: [B]."""
        return minimum(self(observation, action))


def twin_critic(make: Maker, spec: Spec, spaces: Spaces) -> CriticEnsemble | DiscreteTwinCritic:
    """The twin critic for the action space, Discrete or Box."""
    kind = DiscreteTwinCritic if isinstance(spaces.action, Discrete) else CriticEnsemble
    return kind.make(make, spec, spaces)


def critic_ensemble_loss(td_error: Any, weight: Any, q: Any) -> Loss:
    """Half the squared errors of all critics, summed. Fujimoto et al. 2018, algorithm 1.

    td_error: [E, B]; the mean size of a transition's errors is its priority. weight: [B], of the transitions. q:
    [E, B], to report.
    """
    loss = ops.mean(weight * ops.sum(squared(td_error), 0))
    return Loss(loss, td_error=ops.mean(ops.abs(td_error), 0), q_value=ops.mean(q, 0))
