"""One environment as agents see it: normalised spaces, copied observations, and faults that say where they happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import Origins, Space, Spaces, with_origins
from etude.base.trees import Tree
from etude.envs.actions import Actions, ActionScaling, NormalisedActions
from etude.envs.closing import close_all
from etude.envs.faults import RAISED, FaultLocation, cause_of
from etude.envs.observations import Mismatch, Observations, mask_size
from etude.envs.results import check_reset, explain_flag, explain_step
from etude.envs.rewards import Rewards, ScalarRewards, WrongReward
from etude.envs.tasks import GiveTask, task_giver


@dataclass(frozen=True)
class SpaceConversion:
    """How the observations and actions of one kind of environment are translated."""

    observations: Observations
    actions: Actions

    @classmethod
    def of(
        cls,
        observation: Space,
        action: Space,
        flags: int = 0,
        scaling: ActionScaling = NormalisedActions,
        origins: Origins = (),
    ) -> SpaceConversion:
        """flags: see `Observations`. origins: see `with_origins`."""
        return cls(Observations(with_origins(observation, origins), flags), Actions(action, scaling))

    @property
    def spaces(self) -> Spaces:
        return Spaces(self.observations.space, self.actions.space)


class AdaptedEnvironment:
    """One environment that does not reset itself, for rendering.

    scaling, rewards, spaces, masks, origins: see `LoopEnvironments`.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        name: str,
        scaling: ActionScaling = NormalisedActions,
        rewards: Rewards | None = None,
        spaces: Spaces | None = None,
        masks: bool = False,
        origins: Origins = (),
    ):
        self.env: gym.Env[Any, Any] = env
        self.name: str = name
        self._rewards = rewards or ScalarRewards()
        self._where = FaultLocation(name, 0, -1, 0)
        self._task: Any = None
        self._give: GiveTask = _nothing
        _, info = self._raw_reset(None)
        flags = mask_size(env.action_space, info, masks)
        self._layout = SpaceConversion.of(env.observation_space, env.action_space, flags, scaling, origins)
        self.spaces: Spaces = spaces or self._layout.spaces

    def set_task(self, task: Any) -> None:
        """Give this task, from `task_data`, to the episodes that begin from now on. ConfigError where it takes none."""
        self._give, self._task = task_giver(self.env, self.name), task

    def reset(self, seed: int | None = None) -> Tree:
        """Start an episode; returns its first observation, without a batch axis."""
        self._where = FaultLocation(self.name, 0, self._where.episode + 1, 0, seed, self._task)
        return self._observe(*self._raw_reset(seed))

    def step(self, action: np.ndarray | int) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """One step with an action of `spaces.action`, without a batch axis. The reward is what the episode is scored
        by."""
        where = self._where = replace(self._where, step=self._where.step + 1)
        try:
            result = self.env.step(self._layout.actions.each(np.asarray(action)[None])[0])
        except RAISED as problem:
            raise where.raised(problem) from cause_of(problem)
        if not isinstance(result, tuple) or len(result) != 5:
            raise where.fault(explain_step(result))
        observation, reward, terminated, truncated, info = result
        wrong = explain_flag("terminated", terminated) or explain_flag("truncated", truncated)
        if wrong is not None:
            raise where.fault(wrong)
        ended = bool(terminated or truncated)
        seen = self._observe_final(observation, info) if ended else self._observe(observation, info)
        return seen, self._score(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """What the environment renders, in the `render_mode` that it was made with."""
        try:
            return self.env.render()
        except NotImplementedError as error:
            raise ConfigError(
                f"{type(self.env.unwrapped).__name__} declares render modes in its metadata and has no render(): write "
                "one, which returns an RGB array [height, width, 3] of uint8 for 'rgb_array'."
            ) from error

    @property
    def render_fps(self) -> float:
        """Frames per second of a film; 30 where the environment declares none."""
        return self.env.metadata.get("render_fps") or 30

    def close(self) -> None:
        """Close it, with a warning where that fails."""
        close_all([self.env], self.name)

    def _raw_reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self.env.reset(seed=seed, **self._give(self._task))
        except RAISED as problem:
            raise self._where.raised(problem) from cause_of(problem)
        return check_reset(result, self._where)

    def _score(self, reward: Any) -> float:
        try:
            return float(self._rewards.gather([reward])[1][0])
        except WrongReward as problem:
            raise self._where.fault(str(problem)) from None

    def _observe(self, observation: Any, info: dict[str, Any]) -> Tree:
        try:
            return trees.rows(self._layout.observations.gather([observation], [info]), 0)
        except Mismatch as problem:
            raise self._where.mismatch(problem) from None

    def _observe_final(self, observation: Any, info: dict[str, Any]) -> Tree:
        try:
            return self._layout.observations.gather_final(observation, info)
        except Mismatch as problem:
            raise self._where.mismatch(problem) from None


def _nothing(task: Any) -> dict[str, Any]:
    return {}
