"""The epsilon of an agent's policies, in this process and in workers that act by themselves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

from etude.base.data import PolicyVersion
from etude.explore import EpsGreedyQPolicy, MaxBoltzmannQPolicy
from etude.networks.dense import DenseActor
from etude.rollout import FollowingActor

EPSILON_GREEDY = EpsGreedyQPolicy | MaxBoltzmannQPolicy


def epsilons(policies: Sequence[Any]) -> dict[str, float]:
    """The present `eps` of the policies that have it, by position."""
    return {str(i): policy.eps for i, policy in enumerate(policies) if isinstance(policy, EPSILON_GREEDY)}


def follow_epsilons(policies: Sequence[Any], version: PolicyVersion) -> None:
    """Give the policies the `epsilons` that come with the weights of this version."""
    for place, epsilon in version.hyper.items():
        policies[int(place)].eps = epsilon


def acting_in_worker(actor: DenseActor, policies: Sequence[Any]) -> FollowingActor:
    """Acts as a copy of `actor`. policies: those that explore in the same process, and follow the weights."""
    return FollowingActor(copy.deepcopy(actor), partial(follow_epsilons, policies))
