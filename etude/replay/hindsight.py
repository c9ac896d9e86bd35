"""Hindsight experience replay: goals are relabelled with achieved ones. Andrychowicz et al. 2017, arXiv:1707.01495."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.base.spaces import Dict, Space, Spaces, describe
from etude.base.trees import Tree
from etude.replay.advantages import Advantages
from etude.replay.ring import TERMINATED, TRUNCATED, EpisodeIndex
from etude.replay.views import AroundView, RingView, TransitionView

COMPARED = 32  # rows
GOALS = ("observation", "achieved_goal", "desired_goal")


def future(episodes: EpisodeIndex, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many steps later: any step of the episode from the row's own on."""
    return rng.integers(episodes.after(rows) + 1)


def final(episodes: EpisodeIndex, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many steps later: the last one of the episode."""
    return episodes.after(rows)


def episode(episodes: EpisodeIndex, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many steps later (or earlier): any step of the episode."""
    before = episodes.before(rows)
    return rng.integers(before + episodes.after(rows) + 1) - before


STRATEGIES: dict[str, Callable[[EpisodeIndex, np.ndarray, np.random.Generator], np.ndarray]] = {
    "future": future,
    "final": final,
    "episode": episode,
}


class Hindsight(AroundView):
    """A view of transitions in which a share of the sampled rows is relabelled with achieved goals.

    view: OneStep, NStep, Sequences, Triplets: it reads a relabelled ring (see `_Relabelled`).
    reward_done: `(achieved_goal [..., g], goal [..., g]) -> (reward [...], done [...])`, the reward of a step that led
        to the achieved goal and whether it ends the episode. It is called on whole arrays where it can take them,
        and otherwise pair by pair (see `GoalRewards`). Views of several steps ask about each of them, with one
        goal, and end where `done` is true.
    rng: the view's own generator, part of its state.
    strategy: which step of the row's episode the goal is taken from: "future", uniformly from the row on (its own
        outcome included); "final", the last one; "episode", uniformly from all of it. The goal is what was achieved
        *after* that step. Of an episode that is open, or partly forgotten, the steps that are stored count.
    share: how likely each sampled row is to get a new goal; 0.8 is four of five, the paper's k = 4. The others keep
        goal, reward and end.

    differ: called once where the first rows that are sampled show it, with the reward of a stored step and with another
        one that `reward_done` gives for its own goals.

    Observations are those of goal environments: Dict with `observation`, `achieved_goal` and `desired_goal`.
    """

    def __init__(
        self,
        view: TransitionView,
        reward_done: RewardDone,
        rng: np.random.Generator,
        strategy: str = "future",
        share: float = 0.8,
        differ: Callable[[float, float], None] | None = None,
    ):
        if strategy not in STRATEGIES or not 0.0 <= share <= 1.0:
            raise ConfigError(
                f"Hindsight: strategy = {strategy!r}, share = {share}; expected a strategy of {', '.join(STRATEGIES)} "
                "and a share from 0 to 1."
            )
        if isinstance(view, Advantages):
            raise ConfigError(
                "Hindsight cannot be combined with advantages: those of a policy that acted for other goals are not "
                "defined. Use a view of transitions, OneStep or NStep, and an algorithm that learns off-policy."
            )
        self.view: TransitionView = view
        self.rng: np.random.Generator = rng
        self.strategy: str = strategy
        self.share: float = share
        self.rewards: GoalRewards = GoalRewards(reward_done)
        self._differ = differ

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        return self.view.place(ring, rows)

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        require_goals(ring.spaces.observation)
        start = self.view.place(ring, rows)
        if self._differ is not None:
            compared = start.reshape(-1)[:COMPARED]
            following, (stored, _) = ring.following(compared), ring.outcome(compared)
            found, _ = self.rewards(following["achieved_goal"], following["desired_goal"], stored.shape[1:])
            apart = np.argwhere(~np.isclose(stored, found, rtol=1e-3, atol=1e-4))
            if len(apart):
                self._differ(float(stored[tuple(apart[0])]), float(found[tuple(apart[0])]))
            self._differ = None
        chosen = self.rng.random(rows.shape) < self.share
        from_ = start[chosen]
        reached = ring.ahead(from_, STRATEGIES[self.strategy](ring.episodes, from_, self.rng))
        goal = ring.following_part("achieved_goal", reached)
        batch = self.view(_Relabelled(ring, chosen, goal, self.rewards), start, weight)
        return batch if start is rows else replace(batch, index=rows)

    def state(self) -> dict[str, Any]:
        return {"generator": generator_state(self.rng), "whole": self.rewards.whole, "view": self.view.state()}

    def check_state(self, saved: Stored) -> None:
        held = saved.fields(("generator", "whole", "view"))
        check_generator(held["generator"])
        if held["whole"].value is not None:
            held["whole"].flag()
        self.view.check_state(held["view"])

    def restore(self, state: dict[str, Any]) -> None:
        restore_generator(self.rng, state["generator"])
        self.rewards.whole = state["whole"]
        self.view.restore(state["view"])


def require_goals(space: Space) -> None:
    """Raise ConfigError unless observations are those of a goal environment."""
    if not isinstance(space, Dict) or not set(GOALS) <= set(space.spaces):
        raise ConfigError(
            f"Hindsight needs observations with goals, Dict(observation, achieved_goal, desired_goal); got "
            f"{describe(space)}. Return such a dict from the environment, as those of Gymnasium-Robotics do, or leave "
            "hindsight out."
        )
    achieved, desired = space["achieved_goal"], space["desired_goal"]
    if achieved.shape != desired.shape:
        raise ConfigError(
            f"Hindsight replaces desired goals by achieved ones, but their shapes differ: achieved_goal is "
            f"{describe(achieved)}, desired_goal {describe(desired)}. Give both the same space."
        )


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


class _Relabelled:
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
        self.locate = ring.locate
        self.ahead = ring.ahead
        self.actions = ring.actions
        self.stored = ring.stored

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
