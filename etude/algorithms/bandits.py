"""Contextual bandits: upper confidence bounds or Thompson sampling, over values that are linear in the observation, or
in what a network makes of it. What an action changes later is left out: every step is a decision of its own.

Li, Chu, Langford & Schapire 2010, A contextual-bandit approach to personalized news article recommendation,
arXiv:1003.0146, algorithm 1: LinUCB. Zhang, Zhou, Li & Gu 2021, Neural Thompson sampling, arXiv:2010.00827, algorithm
1; Zhou, Li & Gu 2020, Neural contextual bandits with UCB-based exploration, arXiv:1911.04462.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import ActsBy, Agent, LearnsFrom, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.masks import masked
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, frozen


@dataclass(frozen=True)
class LinUCBConfig(OffPolicyConfig):
    """Hyperparameters of LinUCB, besides those of every off-policy algorithm. Each step is learned from once."""

    network: Spec = Mlp(())  # values are linear in its features, which nothing trains; Mlp(()): in the observation
    gamma: float = 0.0  # of no effect: rewards are immediate
    batch_size: int = 1  # transitions per gradient step
    learning_starts: int = 0  # environment steps before the first gradient step
    alpha: float = 1.0  # standard deviations of a value that are added to it, or that its sample has
    ridge: float = 1.0  # lambda: coefficient of the squared weights in the ridge regression
    thompson: bool = False  # sample values (Thompson sampling); False: upper confidence bounds
    epsilon: float | Linear = 0.0  # probability of a random action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "ridge")
        checks.not_negative(self, "alpha")
        checks.fractions(self, "epsilon")
        name = type(self).__name__
        if self.n_step != 1 or self.hindsight != "none" or self.priority_exponent or self.reset_every:
            raise ConfigError(
                f"{name}: n_step = {self.n_step}, hindsight = {self.hindsight!r}, priority_exponent = "
                f"{self.priority_exponent}, reset_every = {self.reset_every}; a bandit learns from each step once, as "
                "it happened. Leave them at 1, 'none', 0 and None."
            )
        if self.batch_size < self.new_steps:
            raise ConfigError(
                f"{name}: batch_size = {self.batch_size}, train_every = {self.train_every}, gradient_steps = "
                f"{self.gradient_steps}; expected batches that hold all new steps. Give batch_size={self.new_steps}."
            )

    @property
    def new_steps(self) -> int:
        """The steps of a batch that no batch has held before, at most."""
        return -(-self.train_every // self.gradient_steps)


class RidgeRegression(Part):
    """Rewards as linear functions of features x [D], one for each of K actions: A^-1 b with A = ridge * I + sum of
    x x', b = sum of reward * x, over the steps in which the action was taken.

    sampled: whether `bonus` is noise.
    """

    def __init__(self, actions: int, size: int, ridge: float, sampled: bool):
        inverse = np.repeat(np.eye(size, dtype=np.float32)[None] / np.float32(ridge), actions, 0)
        self.noise: Any = {"noise": (actions,)} if sampled else {}
        drawn = {name: np.zeros(shape, np.float32) for name, shape in self.noise.items()}
        self.variables: Any = {"inverse": inverse, "b": np.zeros((actions, size), np.float32), **drawn}
        self.frozen: frozenset[str] = frozenset(self.variables)

    def __call__(self, x: Any = None) -> Any:
        """The expected rewards [B, K] of features [B, D]."""
        b = ops.expand_dims(self.variables["b"], 1)
        return ops.matmul(x, ops.swapaxes(ops.matmul(b, self.variables["inverse"])[:, 0], 0, 1))

    def deviation(self, x: Any) -> Any:
        """(x' A^-1 x) ** 0.5 for each action, [B, K]."""
        variance = ops.sum(ops.matmul(x, self.variables["inverse"]) * x, -1)
        return ops.swapaxes(ops.sqrt(ops.maximum(variance, 1e-12)), 0, 1)

    def bonus(self, x: Any) -> Any:
        """What is added to expected rewards, in units of alpha: the deviation, or a normal number of its size."""
        return self.deviation(x) * self.variables["noise"] if self.noise else self.deviation(x)

    def observe(self, x: Any, action: Any, reward: Any, weight: Any) -> None:
        """Take in steps [B, D], [B], [B], each as often as its weight [B] says, by Sherman and Morrison's formula."""
        taken = ops.one_hot(action, self.variables["b"].shape[0]) * ops.expand_dims(weight, 1)

        def step(inverse: Any, x: Any, taken: Any) -> Any:
            u = ops.matmul(ops.reshape(x, (1, -1)), inverse)  # [K, 1, D]
            weight = ops.reshape(taken, (-1, 1, 1))
            return inverse - weight / (1.0 + weight * ops.sum(u * x, -1, keepdims=True)) * ops.swapaxes(u, 1, 2) * u

        b = self.variables["b"] + ops.matmul(ops.swapaxes(taken, 0, 1), x * ops.expand_dims(reward, 1))
        self.moved: Any = {"inverse": ops.scan(step, self.variables["inverse"], (x, taken))[-1], "b": b}
        self.variables = {**self.variables, **self.moved}


class LinUCB(Agent):
    """Ridge regression of the rewards of each action; acts by its upper confidence bounds, or by samples."""

    acts_by: ClassVar[ActsBy] = "values"
    learns_from: LearnsFrom = "new_transitions"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)
    trains: ClassVar[bool] = False  # whether features are trained

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        features = make.features(self.config.network, spaces.observation)
        self.q: dict[str, Part] = {"features": features if self.trains else frozen(features)}
        self.actions_count, self.size = int(spaces.action.n), features.architecture.outputs
        self.regression: RidgeRegression = self.make_regression(self.size)

    def make_regression(self, size: int) -> RidgeRegression:
        """Of so many features."""
        if self.config.thompson:
            self.batch_noise["noise"] = (self.actions_count,)
        return RidgeRegression(self.actions_count, size, self.config.ridge, self.config.thompson)

    def act(self, observation: Tree) -> Any:
        x = self.q["features"](self.normaliser(observation))
        values = self.values(x) + self.config.alpha * self.regression.bonus(self.features(x))
        return masked(values, observation[ACTION_MASK]) if self.masked else values

    def values(self, x: Any) -> Any:
        """The expected rewards [B, K] where `features` makes x [B, ...] of the observation."""
        return self.regression(x)

    def features(self, x: Any) -> Any:
        """What the regression reads, [B, D], without a gradient."""
        return x

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        x, n = self.q["features"](self.normaliser(batch.observation)), self.config.new_steps
        seen = self.features(x)
        error = batch.reward - ops.take_last(self.values(x), batch.action)
        deviation = ops.take_last(self.regression.deviation(seen), batch.action)
        self.regression.observe(seen[:n], batch.action[:n], batch.reward[:n], batch.weight[:n])
        return Losses(q=Loss(ops.mean(ops.square(error)), deviation=deviation))


@dataclass(frozen=True)
class NeuralTSConfig(LinUCBConfig):
    """Hyperparameters of neural Thompson sampling: those of LinUCB with other defaults, and a network."""

    network: Spec = Mlp((100,))  # to the features that the last layer reads
    learning_rate: float | Linear = 1e-3
    batch_size: int = 64  # transitions per gradient step: new ones first, others from all of the replay
    alpha: float = 0.1  # nu * lambda ** 0.5 in the paper
    thompson: bool = True  # sample values (Thompson sampling); False: upper confidence bounds (NeuralUCB)


class NeuralTS(LinUCB):
    """A network of the expected rewards, and the uncertainty of its last layer, by which values are sampled."""

    trains = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        self.regression = self.make_regression(self.size + 1)
        hidden = Box(-np.inf, np.inf, (self.size,), np.float32)
        self.q["head"] = make(Mlp(()), hidden, outputs=self.actions_count)

    def values(self, x: Any) -> Any:
        return self.q["head"](x)

    def features(self, x: Any) -> Any:
        """The gradient of a value by the weights and the bias of the last layer, divided by the root of the width."""
        x = ops.concatenate([x, ops.ones_like(x[:, :1])], -1)
        return ops.stop_gradient(x) / float(np.sqrt(self.size))
