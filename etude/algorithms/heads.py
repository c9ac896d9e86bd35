"""Policies of every action space out of one network, for algorithms that only need their log probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import ops
from etude.losses.distributions import Deterministic, Gaussian, forbid, of_choices
from etude.networks import Maker, Part, Spec
from etude.networks.encoding import width
from etude.spaces import ACTION_MASK, Box, Spaces
from etude.trees import Tree

LOG_STD = (-5.0, 2.0)  # bounds on the log standard deviations of Box actions


def make_actor(make: Maker, network: Spec, spaces: Spaces, certain: bool = False) -> dict[str, Part]:
    """The parts of a policy: a network, and for Box actions their log standard deviations, whatever is observed.
    certain: without deviations; Box actions are then `Deterministic`."""
    actor: dict[str, Part] = {"policy": make(network, spaces.observation, outputs=width(spaces.action))}
    if isinstance(spaces.action, Box) and not certain:
        actor["log_std"] = make.free(np.zeros(width(spaces.action)))
    return actor


def policy(actor: dict[str, Part], spaces: Spaces, normalised: Tree, observation: Tree) -> Any:
    """The distribution over actions for [N, ...] observations, as they are (for masks) and normalised.

    Box actions: a Gaussian around tanh of the network's output, so that its mode lies in [-1, 1].
    """
    x, space = actor["policy"](normalised), spaces.action
    if isinstance(space, Box):
        mean = ops.tanh(x)
        if "log_std" not in actor:
            return Deterministic(mean)
        return Gaussian(mean, mean * 0.0 + ops.clip(actor["log_std"](), *LOG_STD))
    if spaces.masked:
        x = forbid(x, observation[ACTION_MASK])
    return of_choices(space, x)
