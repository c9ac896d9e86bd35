"""Intrinsic rewards for what is new within an episode.

E3B: exploration via elliptical episodic bonuses. Henaff et al. 2022, arXiv:2210.05805, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude.agent import Agent, Loss, Losses
from etude.base import checks
from etude.base.checks import Stored
from etude.base.data import Batch, Steps
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.networks import Maker, Mlp, Spec
from etude.rewrite.curiosity import Curiosity, ICMAgent, IntrinsicReward, config_of, network_for
from etude.rewrite.rewriter import Rewriter, RewriterContext


@dataclass(frozen=True)
class E3B(Curiosity):
    """Intrinsic rewards for observations unlike those before in the episode: f' C^-1 f of the features f of the next
    observation, where C is the sum of f f' over the episode so far and `ridge` times the identity.

    Features are learned by an inverse model, which predicts the action from the features before and after it.
    """

    name: ClassVar[str] = "e3b"
    model_network: Spec = Mlp((64,))  # of the inverse model
    ridge: float = 0.1  # the paper's lambda: the features' covariance where an episode begins, times the identity

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "ridge")

    def agent(self, spaces: Spaces) -> Agent:
        return E3BAgent(config_of(self, network_for(self.network, spaces.observation)))

    def rewriter(self, context: RewriterContext) -> Rewriter:
        return EpisodicReward(self, context)


class E3BAgent(ICMAgent):
    """`model`: an encoder of observations and an inverse model."""

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        self.model = {name: part for name, part in self.model.items() if name != "forward"}

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        """The features [N, features] that `EpisodicReward` makes rewards of."""
        return self.features(next_observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        before, after = self.features(batch.observation), self.features(batch.next_observation)
        predicted = self.model["inverse"]((before, after))
        return Losses(model=Loss(self._inverse_error(self.action_space, predicted, batch.action)))


class EpisodicReward(IntrinsicReward):
    """The bonus of E3B, from the inverse covariance of the features of each environment's episode, [F, F]."""

    def __init__(self, settings: E3B, context: RewriterContext):
        super().__init__(settings, context)
        self._fresh = np.eye(settings.features) / settings.ridge
        self._inverse = np.tile(self._fresh, (context.environments, 1, 1))

    def _rewards(self, steps: Steps, rows: dict[str, Tree]) -> np.ndarray:
        features = super()._rewards(steps, rows)  # [T, N, F]
        inverse = self._inverse[steps.columns]
        inverse[steps.restarted] = self._fresh
        ended, found = steps.terminated | steps.truncated, np.empty(steps.shape)
        for t, seen in enumerate(features):
            # The inverse after a product is added, Sherman & Morrison 1950: no matrix is inverted
            moved = np.einsum("nij,nj->ni", inverse, seen)
            found[t] = np.sum(moved * seen, -1)
            inverse -= np.einsum("ni,nj->nij", moved, moved) / (1 + found[t])[:, None, None]
            inverse[ended[t]] = self._fresh
        self._inverse[steps.columns] = inverse
        return found

    def state(self) -> dict[str, Any]:
        return {**super().state(), "inverse": self._inverse.copy()}

    def check_state(self, saved: Stored) -> None:
        own = saved.table()
        inverse = own.pop("inverse", Stored(None, f"{saved.place}/inverse"))
        inverse.array(np.float64, self._inverse.shape)
        super().check_state(Stored({name: part.value for name, part in own.items()}, saved.place))

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._inverse = np.array(state["inverse"])
