"""ICM: the intrinsic curiosity module. Pathak et al. 2017, Curiosity-driven exploration by self-supervised prediction,
arXiv:1705.05363."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.spaces import Box, Hybrid, Spaces
from etude.base.trees import Tree
from etude.losses.distributions import of_choices
from etude.networks import Maker, Mlp, Spec
from etude.networks.encoding import width
from etude.rewrite.curiosity import Curiosity, CuriosityConfig, config_of, network_for


@dataclass(frozen=True)
class ICM(Curiosity):
    """Intrinsic rewards for steps whose outcome is hard to predict: half the squared error with which a forward model
    predicts the features of the next observation from those of the observation, and the action.

    Features are learned by an inverse model, which predicts the action from the features before and after it, and by
    the forward model, as in the paper's equation 7. Box actions are predicted by their mean squared error.
    """

    name: ClassVar[str] = "icm"
    model_network: Spec = Mlp((64,))  # of the forward and the inverse model
    forward_share: float = 0.2  # the paper's beta: share of the forward loss; the inverse loss has the rest

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "forward_share")

    def agent(self, spaces: Spaces) -> Agent:
        return ICMAgent(config_of(self, network_for(self.network, spaces.observation)))


class ICMAgent(Agent):
    """`model`: an encoder of observations, a forward and an inverse model."""

    config: CuriosityConfig

    def build(self, make: Maker, spaces: Spaces) -> None:
        settings = self.config.settings
        self.action_space = spaces.action
        features = Box(-np.inf, np.inf, (settings.features,), np.float32)
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model = {
            "encoder": make(self.config.network, spaces.observation, outputs=settings.features),
            "forward": make(settings.model_network, (features, spaces.action), outputs=settings.features),
            "inverse": make(settings.model_network, (features, features), outputs=width(spaces.action)),
        }

    def features(self, observation: Tree) -> Any:
        """The features of observations, [N, features]."""
        return self.model["encoder"](self.normaliser(observation))

    def error(self, before: Any, action: Any, after: Any) -> Any:
        """Half the squared error of the forward model, equations 5 and 6: a sum over features, [N]."""
        return 0.5 * ops.sum(ops.square(self.model["forward"]((before, action)) - after), -1)

    def _inverse_error(self, space: Any, predicted: Any, action: Any) -> Any:
        if isinstance(space, Hybrid):
            parts, numbers = (space.numbers, space.choices), width(space.numbers)
            own = [(x[:, :numbers], x[:, numbers:]) for x in (predicted, action)]
            whole = own[1][0], ops.cast(own[1][1], "int32")
            return sum(self._inverse_error(*each) for each in zip(parts, own[0], whole, strict=True))
        if isinstance(space, Box):
            return ops.mean(ops.square(predicted - action))
        return -ops.mean(of_choices(space, predicted).log_prob(action))

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return self.error(self.features(observation), action, self.features(next_observation))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        before, after = self.features(batch.observation), self.features(batch.next_observation)
        predicted = self.model["inverse"]((before, after))
        inverse = self._inverse_error(self.action_space, predicted, batch.action)
        forward, share = ops.mean(self.error(before, batch.action, after)), self.config.settings.forward_share
        return Losses(model=Loss((1 - share) * inverse + share * forward, inverse=inverse, forward=forward))
