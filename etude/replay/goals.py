"""Goal-conditioned rewards by a function of the user, and a ring relabelled with other goals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.replay.episodes import EpisodeIndex
from etude.replay.ring import TERMINATED, TRUNCATED
from etude.replay.ring_view import RingView

RewardDone = Callable[[Any, Any], tuple[Any, Any]]  # (achieved_goal, goal) -> (reward, done)
Outcomes = tuple[np.ndarray, np.ndarray]  # rewards [M, ...] float32, done [M] bool

FEW = 8  # pairs that decide whether a function takes arrays


class GoalRewards:
    """`function(achieved_goal, goal) -> (reward, done)` for many pairs at once.

    The first call finds out whether the function takes whole arrays, [M, ...] -> ([M], [M]): it is asked about a few
    pairs both ways. Where it raises, returns other shapes, or other values than for one pair after the other, it is
    called pair by pair from then on. `whole` is what was found out, None before the first call; it is part of a view's
    state, so that a resumed run computes as it did.
    """

    def __init__(self, function: RewardDone):
        self.function = function
        self.whole: bool | None = None

    def __call__(self, achieved: Tree, goal: Tree, shape: tuple[int, ...]) -> Outcomes:
        """For goals [M, ...], M >= 1: rewards [M, *shape] float32 and done [M] bool."""
        if self.whole is None:
            self.whole = self._takes_arrays(achieved, goal, shape)
        return self._together(achieved, goal, shape) if self.whole else self._singly(achieved, goal, shape)

    def _takes_arrays(self, achieved: Tree, goal: Tree, shape: tuple[int, ...]) -> bool:
        # As many pairs as no axis of a goal is long: a sum over the wrong axis must not pass for rewards of all pairs.
        lengths = {length for leaf in trees.leaves(goal) for length in leaf.shape[1:]}
        number = next(number for number in count(FEW) if number not in lengths)
        some = np.arange(number) % len(trees.leaves(goal)[0])
        achieved, goal = trees.rows(achieved, some), trees.rows(goal, some)
        expected = self._singly(achieved, goal, shape)
        try:
            together = self._together(achieved, goal, shape)
        except Exception:  # whatever it is, what was just computed shows that single pairs do not raise it
            return False
        return bool(np.allclose(together[0], expected[0], equal_nan=True) and np.array_equal(together[1], expected[1]))

    def _together(self, achieved: Tree, goal: Tree, shape: tuple[int, ...]) -> Outcomes:
        number = len(trees.leaves(goal)[0])
        reward, done = self.function(achieved, goal)
        try:
            return np.asarray(reward, np.float32).reshape(number, *shape), np.asarray(done, bool).reshape(number)
        except (TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"The rewards of {number} pairs of goals are of shape {np.shape(reward)}, and whether they are reached "
                f"of {np.shape(done)}; expected {(number, *shape)} and {(number,)}, as for the first pairs."
            ) from error

    def _singly(self, achieved: Tree, goal: Tree, shape: tuple[int, ...]) -> Outcomes:
        number = len(trees.leaves(goal)[0])
        rewards, done = np.zeros((number, *shape), np.float32), np.zeros(number, bool)
        for row in range(number):
            outcome = self.function(trees.rows(achieved, row), trees.rows(goal, row))
            try:
                reward, ended = outcome
                rewards[row] = np.asarray(reward, np.float32).reshape(shape)
                done[row] = np.asarray(ended, bool).reshape(())
            except (TypeError, ValueError) as error:
                expected = "a reward (a number)" if not shape else f"a reward of shape {shape}"
                raise ConfigError(
                    f"`reward_done(achieved_goal, goal)` returned {outcome!r} for one pair of goals; expected a "
                    f"tuple of {expected} and whether the goal was reached (a bool). Return (reward, done)."
                ) from error
        return rewards, done


class Relabelled:
    """A ring view in which some sampled rows, and all rows that are read with them, have other goals.

    chosen: bool, of the shape of the sampled rows. goal: [M, ...] the goal of each chosen one, in order.

    A step of a chosen row ends its episode where it reaches the new goal. Where the episode ended otherwise, it is as
    if it had been truncated there: under the new goal the world would have gone on.
    """

    def __init__(self, ring: RingView, chosen: np.ndarray, goal: Tree, rewards: GoalRewards):
        self.ring: RingView = ring
        self.chosen: np.ndarray = chosen
        self.goal: Tree = goal
        self.rewards: GoalRewards = rewards
        self.spaces: Spaces = ring.spaces
        self.episodes: EpisodeIndex = ring.episodes
        self.locate, self.ahead, self.actions, self.stored = ring.locate, ring.ahead, ring.actions, ring.stored

    def __len__(self) -> int:
        return len(self.ring)

    def observation(self, rows: np.ndarray) -> Tree:
        return self._with_goals(self.ring.observation(rows))

    def following(self, rows: np.ndarray) -> Tree:
        return self._with_goals(self.ring.following(rows))

    def pair(self, rows: np.ndarray) -> tuple[Tree, Tree]:
        observation, following = self.ring.pair(rows)
        return self._with_goals(observation), self._with_goals(following)

    def following_part(self, key: str, rows: np.ndarray) -> Tree:
        if key == "desired_goal":
            return self.following(rows)[key]
        return self.ring.following_part(key, rows)

    def outcome(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward, kind = self.ring.outcome(rows)
        if not self.chosen.any():
            return reward, kind
        steps = rows[..., self.chosen]  # [..., M]
        achieved = trees.map(_flat(steps), self.ring.following_part("achieved_goal", steps))
        goal = trees.map(lambda leaf: _flat(steps)(np.broadcast_to(leaf, (*steps.shape, *leaf.shape[1:]))), self.goal)
        shape = reward.shape[rows.ndim :]
        new, done = self.rewards(achieved, goal, shape)
        ended = np.where(kind[..., self.chosen] != 0, TRUNCATED, 0)
        reward[self._places(len(shape))] = new.reshape(*steps.shape, *shape)
        kind[self._places(0)] = np.where(done.reshape(steps.shape), TERMINATED, ended)
        return reward, kind

    def _with_goals(self, observation: Tree) -> Tree:
        """The observations of [..., *those sampled], the desired goals of the chosen ones replaced."""

        def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
            leaf = leaf.copy()  # stacked frames share memory
            leaf[self._places(new.ndim - 1)] = new
            return leaf

        return {**observation, "desired_goal": trees.map(replaced, observation["desired_goal"], self.goal)}

    def _places(self, axes: int) -> Any:
        """Indexes the chosen ones of arrays [..., *those sampled, *`axes` more]."""
        return (..., self.chosen, *[slice(None)] * axes)


def _flat(steps: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Makes one axis of those of `steps`."""
    return lambda leaf: leaf.reshape(steps.size, *leaf.shape[steps.ndim :])
