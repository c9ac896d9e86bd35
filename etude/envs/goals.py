"""The reward of a goal environment as a function of goals, for hindsight experience replay.

After the interface of Gymnasium-Robotics (Plappert et al. 2018, arXiv:1802.09464): `compute_reward(achieved_goal,
desired_goal, info)` and `compute_terminated(achieved_goal, desired_goal, info)`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.forks import when_dropped
from etude.base.trees import Tree
from etude.envs.closing import close_all
from etude.envs.faults import RAISED, FaultLocation, cause_of, explain_error
from etude.envs.make import make_single
from etude.envs.registry import EnvironmentSpec, resolve
from etude.envs.results import check_reset


class GoalOutcome:
    """The reward of a step that led to an achieved goal, and whether it ends the episode, under any desired goal.

    Makes one environment, which is reset once, never stepped, and closed with this object. Outer wrappers are asked
    first. Where there is no `compute_terminated`, no goal ends an episode. `info` is always empty.
    Raises ConfigError where the environment has no `compute_reward`, and EnvironmentFault where that raises for the
    goals of the first observation.
    """

    def __init__(self, env: EnvironmentSpec):
        source = resolve(env)
        if source.single is None:
            raise ConfigError(
                f"{source.name} makes a vectorised simulator only; hindsight calls compute_reward of a single "
                "environment. Register one, or leave hindsight off."
            )
        made = make_single(source, {})
        when_dropped(self, close_all, [made], source.name)
        self._reward, self._terminated = _method(made, "compute_reward"), _method(made, "compute_terminated")
        if self._reward is None:
            raise ConfigError(
                f"{source.name} has no compute_reward(achieved_goal, desired_goal, info), which hindsight relabels "
                "transitions with. Give the environment one, as those of Gymnasium-Robotics have, or leave hindsight "
                "off."
            )
        self.name: str = source.name
        self._where = FaultLocation(source.name, 0, -1, 0)
        try:
            result = made.reset(seed=0)
        except RAISED as problem:
            raise self._where.raised(problem) from cause_of(problem)
        first, _ = check_reset(result, self._where)
        if isinstance(first, dict) and {"achieved_goal", "desired_goal"} <= first.keys():
            self(first["achieved_goal"], first["desired_goal"])

    def __call__(self, achieved: Tree, desired: Tree) -> tuple[Any, Any]:
        """(reward, terminated) of one pair of goals; or [M] of each, where `compute_reward` takes goals [M, ...].
        Raises EnvironmentFault where the environment raises."""
        try:
            reward = self._reward(achieved, desired, {})
            outcome = reward, self._ends(achieved, desired, np.shape(reward))
            if not np.isfinite(np.asarray(reward, np.float32)).all():
                raise ValueError(f"compute_reward returned {reward!r:.100}; expected finite numbers")
            return outcome
        except RAISED as problem:
            raise EnvironmentFault(
                f"{self._where.name}: the reward of a goal raised {explain_error(problem)}. Hindsight asks for rewards "
                "of stored goals in an environment of its own, which was reset once, with an empty info: compute them "
                "from the two goals alone."
            ) from cause_of(problem)

    def _ends(self, achieved: Tree, desired: Tree, shape: tuple[int, ...]) -> Any:
        if self._terminated is None:
            return np.zeros(shape, bool)
        ends = self._terminated(achieved, desired, {})
        if not shape or np.shape(ends) == shape:
            return ends
        # One answer for all pairs (a constant, or `bool(norm(...) < 0.5)`) is none for each.
        pairs = ((trees.rows(achieved, i), trees.rows(desired, i)) for i in range(shape[0]))
        return np.array([self._terminated(*pair, {}) for pair in pairs], bool)


def _method(env: gym.Env[Any, Any], name: str) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
