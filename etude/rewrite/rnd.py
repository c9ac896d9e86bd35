"""RND: random network distillation. Burda et al. 2018, Exploration by random network distillation, arXiv:1810.12894."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base.data import Batch
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.networks import Maker, Spec
from etude.rewrite.curiosity import Curiosity, CuriosityConfig, config_of, fixed, network_for


@dataclass(frozen=True)
class RND(Curiosity):
    """Intrinsic rewards for new observations: the mean squared error with which a trained network predicts the features
    of the next observation that a fixed random network computes.

    Differs from the paper: intrinsic and environment rewards have one value function, one discount factor, and end with
    the episode; the predictor is trained once on each step, and not on all epochs of a policy's minibatches.
    """

    name: ClassVar[str] = "rnd"
    predictor_network: Spec | None = None  # None: as `network`, which is the fixed one's

    def agent(self, spaces: Spaces) -> Agent:
        return RNDAgent(config_of(self, network_for(self.network, spaces.observation)))


class RNDAgent(Agent):
    """A fixed network `target` and a trained network `predictor`, both from observations to features."""

    config: CuriosityConfig

    def build(self, make: Maker, spaces: Spaces) -> None:
        settings, space = self.config.settings, spaces.observation
        self.normaliser = make.normaliser(space, self.config.normalize_observation)
        self.target = fixed(make(self.config.network, space, outputs=settings.features))
        spec = self.config.network if settings.predictor_network is None else settings.predictor_network
        self.predictor = make(spec, space, outputs=settings.features)

    def error(self, observation: Tree) -> Any:
        """The squared error of the prediction, a mean over features: [N]."""
        seen = self.normaliser(observation)
        return ops.mean(ops.square(self.predictor(seen) - ops.stop_gradient(self.target(seen))), -1)

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return self.error(next_observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        return Losses(predictor=Loss(ops.mean(self.error(batch.next_observation))))
