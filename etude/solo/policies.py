"""The epsilon of an agent's policies, in this process and in workers that act by themselves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.trees import Tree
from etude.explore import EpsGreedyQPolicy, MaxBoltzmannQPolicy
from etude.networks.dense import DenseActor
from etude.protocols import Weights

EPSILON_GREEDY = EpsGreedyQPolicy | MaxBoltzmannQPolicy


def epsilons(policies: Sequence[Any]) -> dict[str, float]:
    """The present `eps` of the policies that have it, by position."""
    return {str(i): policy.eps for i, policy in enumerate(policies) if isinstance(policy, EPSILON_GREEDY)}


class FollowingActor:
    """Acts as a copy of `actor`, and gives policies the `epsilons` that come with its weights.

    policies: those that explore in the same process: a worker unpickles them together with this.
    """

    state_size = 0

    def __init__(self, actor: DenseActor, policies: Sequence[Any]):
        self._actor, self._policies = copy.deepcopy(actor), policies

    def act(self, observation: Tree, state: np.ndarray | None = None) -> np.ndarray:
        """What the network makes of observations [N, ...]; it has no recurrent state."""
        return self._actor.act(observation)

    def weights(self) -> Weights:
        """Those of the network."""
        return self._actor.weights()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these weights, and explore with the epsilons of their version."""
        self._actor.load(weights)
        for place, epsilon in version.hyper.items():
            self._policies[int(place)].eps = epsilon
