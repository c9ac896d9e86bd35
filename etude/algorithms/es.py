"""Evolution strategies: a gradient estimate from the returns of randomly perturbed weights.

Salimans et al. 2017, Evolution strategies as a scalable alternative to reinforcement learning, arXiv:1703.03864.
Mania, Guy & Recht 2018, Simple random search provides a competitive approach to reinforcement learning,
arXiv:1803.07055: augmented random search, for linear policies, along the best of few random directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude.agent import Agent
from etude.algorithms.policies import BoundedPolicy, ClippedPolicy
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import EpisodesConfig
from etude.losses.policy import antithetic_gradient, augmented_gradient, centred_ranks
from etude.networks import Maker, Mlp, Normaliser, Part, Spec
from etude.optimizers import SGD, Optimizer


@dataclass(frozen=True)
class ESConfig(EpisodesConfig):
    """Hyperparameters of ES, besides those of every algorithm that learns from whole episodes. A generation is one
    episode of every environment, of which there is an even number."""

    network: Spec = Mlp((32, 32), "tanh", "orthogonal")  # policy network
    learning_rate: float | Linear = 0.01
    sigma: float = 0.02  # standard deviation of the weight perturbations
    weight_decay: float = 0.005  # L2 coefficient: this times the weights is added to the gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "sigma")
        checks.not_negative(self, "weight_decay")
        if self.clip_reward:
            raise ConfigError(
                f"{type(self).__name__}: clip_reward = True, but fitness is the return of the environment. Leave it "
                "off, or wrap the environment in gymnasium.wrappers.ClipReward."
            )


class ES(Agent):
    """A policy whose weights ascend an estimate of the gradient of the expected fitness; nothing is differentiated."""

    learns_from = "fitness"
    actions: ClassVar[tuple[type[Any], ...]] = BoundedPolicy.actions
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: BoundedPolicy = self.make_policy(spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = self.policy.make(make, self.config.actor_network, initial_log_std=None)

    def make_policy(self, spaces: Spaces) -> BoundedPolicy:
        """What the network's outputs mean."""
        return BoundedPolicy(spaces)

    def act(self, observation: Tree) -> Any:
        """A distribution; its mode acts, in training too."""
        return self.policy(self.model, observation, self.normaliser(observation))

    def estimate(self, weights: np.ndarray, returns: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.config.weight_decay * weights - self.ascent(returns, noise)

    def ascent(self, returns: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The estimate of the fitness's gradient; arguments as of `estimate`."""
        return antithetic_gradient(centred_ranks(returns), noise, self.config.sigma)


@dataclass(frozen=True)
class ARSConfig(ESConfig):
    """Hyperparameters of ARS: those of ES with other defaults, and the number of directions that count. Versions V2 and
    V2-t; with `normalize_observation` off V1 and V1-t."""

    network: Spec = Mlp((), bias=False)  # policy network: a matrix
    learning_rate: float | Linear = 0.02
    optimizer: Optimizer = SGD()
    sigma: float = 0.05
    weight_decay: float = 0.0
    normalize_observation: bool = True
    top_directions: int | None = None  # directions in a step, those of the highest returns; None: all
    squash: bool = False  # Box actions: tanh of the network's outputs; False: the outputs, 0 at first, clipped

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_directions is not None:
            checks.counts(self, "top_directions")


class ARS(ES):
    """A policy that moves along random directions by the differences of the returns of either way, in units of their
    standard deviation."""

    def make_policy(self, spaces: Spaces) -> BoundedPolicy:
        return BoundedPolicy(spaces) if self.config.squash else ClippedPolicy(spaces)

    def ascent(self, returns: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return augmented_gradient(returns, noise, self.config.top_directions)
