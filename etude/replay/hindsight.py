"""Hindsight experience replay: goals are relabelled with achieved ones. Andrychowicz et al. 2017, arXiv:1707.01495."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.base.spaces import Dict, Space, describe
from etude.replay.episodes import EpisodeIndex
from etude.replay.goals import GoalRewards, Relabelled, RewardDone
from etude.replay.ring_view import RingView, TransitionView
from etude.replay.views import Advantages

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


class Hindsight:
    """A view of transitions in which a share of the sampled rows is relabelled with achieved goals.

    view: OneStep, NStep, Sequences, Triplets: it reads a relabelled ring (see `goals.Relabelled`).
    reward_done: `(achieved_goal [..., g], goal [..., g]) -> (reward [...], done [...])`, the reward of a step that led
        to the achieved goal and whether it ends the episode. It is called on whole arrays where it can take them,
        and otherwise pair by pair (see `goals.GoalRewards`). Views of several steps ask about each of them, with one
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

    @property
    def reward_scale(self) -> float:
        """Multiplies all rewards, new ones included."""
        return self.view.reward_scale

    @reward_scale.setter
    def reward_scale(self, scale: float) -> None:
        self.view.reward_scale = scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.view.adjust(hyper)

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        return self.view.place(ring, rows)

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        require_goals(ring.spaces.observation)
        start = self.view.place(ring, rows)
        if self._differ is not None:
            self._compare(ring, start.reshape(-1)[:COMPARED], self._differ)
            self._differ = None
        chosen = self.rng.random(rows.shape) < self.share
        from_ = start[chosen]
        reached = ring.ahead(from_, STRATEGIES[self.strategy](ring.episodes, from_, self.rng))
        goal = ring.following_part("achieved_goal", reached)
        batch = self.view(Relabelled(ring, chosen, goal, self.rewards), start, weight)
        return batch if start is rows else replace(batch, index=rows)

    def _compare(self, ring: RingView, rows: np.ndarray, differ: Callable[[float, float], None]) -> None:
        following, (stored, _) = ring.following(rows), ring.outcome(rows)
        found, _ = self.rewards(following["achieved_goal"], following["desired_goal"], stored.shape[1:])
        apart = np.argwhere(~np.isclose(stored, found, rtol=1e-3, atol=1e-4))
        if len(apart):
            differ(float(stored[tuple(apart[0])]), float(found[tuple(apart[0])]))

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
