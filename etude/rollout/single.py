"""Acting for one environment outside of a rollout, in its own units: for deployment, and for loops of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.spaces import Space
from etude.envs import Translation
from etude.protocols import Explorer, Weights
from etude.rollout.recall import Actor, recall_of


class SingleActor:
    """Chooses one action at a time; recurrent state, of the agent and of its explorer, goes on from call to call.

    action: the canonical action space. rng: what exploration draws from.
    """

    def __init__(self, actor: Actor, translation: Translation, action: Space, rng: np.random.Generator):
        self._actor, self._translation, self._action, self._rng = actor, translation, action, rng
        self._recall = recall_of(actor, np.zeros((1, actor.memory), np.float32))
        self._kept = np.empty((1, 0))  # the state of the explorer that has one

    def act(self, observation: Any, info: dict[str, Any], first: bool, explorer: Explorer, step: int) -> Any:
        """An action of the environment for one of its observations. first: of an episode. step: see `Explorer`.

        An observation that is refused (SpaceError) leaves everything as it was.
        """
        seen = self._translation.observe(observation, info, first)
        if first:
            self._recall.forget(0)
            self._kept[:] = np.nan
        if explorer.memory > self._kept.shape[1]:
            self._kept = np.full((1, explorer.memory), np.nan)
        noise = explorer.draw(self._rng, 1, self._action)
        choice = explorer(self._recall.act(seen), noise, step, self._kept[:, : explorer.memory])
        return self._translation.action(choice.action)

    def load(self, weights: Weights) -> None:
        """Act with these from now on."""
        self._actor.load(weights)
