"""What agents with a stochastic policy have in common: its networks, and the distribution over actions that their
outputs stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.losses.distributions import Gaussian, forbid, of_choices
from etude.networks import Maker, Spec
from etude.networks.encoding import width
from etude.networks.network import Part
from etude.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete, Spaces
from etude.trees import Tree


class Policy:
    """A distribution over the actions of some spaces: `Categorical`, `MultiCategorical`, or for Box actions a
    `Gaussian` whose deviations do not depend on the observation. Forbidden actions have probability 0."""

    actions = (Discrete, MultiDiscrete, Box)  # the spaces that there is a distribution for

    def __init__(self, spaces: Spaces):
        self.spaces = spaces
        self.outputs = width(spaces.action)

    def make(self, make: Maker, spec: Spec, initial_log_std: float) -> dict[str, Part]:
        """The parts that `__call__` takes: `actor`, and for Box actions `log_std`.

        initial_log_std: where log deviations start, in the range [-1, 1] of the actions that an agent sees.
        """
        return self.with_actor(
            make(spec, self.spaces.observation, outputs=self.outputs, gain=0.01), make, initial_log_std
        )

    def with_actor(self, actor: Part, make: Maker, initial_log_std: float) -> dict[str, Part]:
        """The same parts around a network that was made otherwise."""
        if isinstance(self.spaces.action, Box):
            return {"actor": actor, "log_std": make.free(np.full(self.outputs, initial_log_std))}
        return {"actor": actor}

    def __call__(self, parts: dict[str, Part], observation: Tree, seen: Tree) -> Any:
        """The distribution [N] for observations [N, ...]; `seen`: as the network is to see them, normalised."""
        return self.of(parts, observation, parts["actor"](seen))

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Any:
        """The distribution [...] that outputs of the actor [..., outputs] for observations [..., ...] stand for."""
        if isinstance(self.spaces.action, Box):
            return Gaussian(x, x * 0.0 + parts["log_std"]())
        if self.spaces.masked:
            x = forbid(x, observation[ACTION_MASK])
        return of_choices(self.spaces.action, x)
