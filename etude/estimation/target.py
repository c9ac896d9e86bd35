"""The policy that is estimated: what it would do in the recorded observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import CLIPPED, SAMPLED_ACTION, Episode
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Box, Discrete, Space, within
from etude.base.trees import Tree
from etude.explore.explorer import distribution_of
from etude.explore.noise import clipped_log_prob
from etude.losses.distributions import Deterministic, Gaussian

ROWS = 4096  # observations that are acted on at a time


@dataclass(frozen=True)
class TargetPolicy:
    """An actor with the explorer that turns its output into actions, at one environment step of a run.

    actor: acts by `act(observation [N, ...])`, such as `run.actor()`. explorer: knows the distribution of its actions.
    actions: the space of the agent's actions.
    """

    actor: Any
    explorer: Any
    actions: Space

    def distributions(self, episodes: Sequence[Episode]) -> Iterator[tuple[np.ndarray, Any]]:
        """(rows, the distributions of actions in them), for all observations of episodes, one after the other; the last
        observations are included."""
        observation = trees.concatenate([episode.observation for episode in episodes])
        lengths = np.array([len(episode.reward) + 1 for episode in episodes])
        if not self.actor.state_size:
            for start in range(0, int(lengths.sum()), ROWS):
                rows = np.arange(start, min(start + ROWS, lengths.sum()))
                yield rows, self._distribution(self.actor.act(trees.rows(observation, rows)))
            return
        state, first = np.zeros((len(lengths), self.actor.state_size), np.float32), np.cumsum(lengths) - lengths
        action, reward = (
            _spread(np.concatenate(each), steps_of(episodes)[0], lengths.sum())
            for each in zip(*((episode.action, episode.reward) for episode in episodes), strict=True)
        )
        for time in range(lengths.max()):
            going = np.flatnonzero(lengths > time)
            rows = first[going] + time
            output, after = self.actor.act(trees.rows(observation, rows), state[going])
            state[going] = self.actor.rewarded(self.actor.acted(after, action[rows]), reward[rows])
            yield rows, self._distribution(output)

    def log_prob(self, episodes: Sequence[Episode]) -> np.ndarray:
        """The log probabilities of the recorded actions [sum of L] float64; minus infinity for one that is never
        taken."""
        here, _ = steps_of(episodes)
        count = len(here) + len(episodes)
        taken = [episode.extras.get(SAMPLED_ACTION, episode.action) for episode in episodes]
        action = _spread(np.concatenate(taken), here, count)
        # Which recorded actions were clipped [sum of L]; see `explore.noise.ClippedNoise`
        parts = [np.zeros(len(episode.reward), np.uint8) for episode in episodes]
        for i, episode in enumerate(episodes if isinstance(self.actions, Box) else ()):
            found = np.asarray(episode.extras.get(CLIPPED, parts[i]))
            if found.shape != parts[i].shape:
                raise DataError(
                    f"Episode {i}: {CLIPPED!r} has the shape {list(found.shape)}; expected one number for each of its "
                    f"{len(parts[i])} steps, 1 where the action was clipped. Record the data again."
                )
            parts[i] = found
        clipped = _spread(np.concatenate(parts), here, count)
        found = np.empty(count)
        for rows, distribution in self.distributions(episodes):
            if isinstance(distribution, Deterministic):
                raise ConfigError(
                    "The target takes one action in each observation, which has no probability density to compare with "
                    "the recorded one. Estimate it softened by Gaussian noise (softened=0.1), estimate the sampled "
                    "policy (explore=True), or use fqe."
                )
            found[rows] = distribution.log_prob(action[rows])
            at_bounds = np.flatnonzero(clipped[rows])
            if len(at_bounds):
                own, bounds = trees.rows(distribution, at_bounds), rows[at_bounds]
                # Other distributions than normal ones never take an action that was clipped.
                found[bounds] = clipped_log_prob(own, action[bounds]) if isinstance(own, Gaussian) else -np.inf
        return found[here]

    def described(self, episodes: Sequence[Episode], samples: int, rng: np.random.Generator) -> np.ndarray:
        """The policy in all observations, the last ones included: probabilities [M, n] of Discrete actions, or sampled
        Box actions [M, samples, ...]; float32."""
        parts, order = [], []
        for rows, distribution in self.distributions(episodes):
            parts.append(self._described(distribution, len(rows), samples, rng))
            order.append(rows)
        found = np.empty((sum(map(len, order)), *parts[0].shape[1:]), np.float32)
        found[np.concatenate(order)] = np.concatenate(parts)
        return found

    def _distribution(self, output: Any) -> Any:
        return distribution_of(self.explorer, output, 0)

    def _described(self, distribution: Any, count: int, samples: int, rng: np.random.Generator) -> np.ndarray:
        if isinstance(self.actions, Discrete):
            return distribution.probabilities()
        if not isinstance(self.actions, Box):
            raise ConfigError(
                f"fqe, dm, dr and wdr are for Discrete and Box actions; these are {self.actions}. Use is, pdis or wis, "
                "or give model=."
            )
        if isinstance(distribution, Deterministic):
            drawn = distribution.action[:, None]
        else:
            noise = rng.standard_normal((samples, count, int(np.prod(self.actions.shape))), np.float32)
            drawn = np.stack([distribution.sample(each) for each in noise], 1)
        return within(self.actions, drawn).astype(np.float32)


def steps_of(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """(places of all steps' observations, of their next ones) among all observations of episodes: [sum of L] each."""
    lengths = np.array([len(episode.reward) for episode in episodes])
    here = np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)
    return here, here + 1


def observations_of(episodes: Sequence[Episode]) -> Tree:
    """The observations of all steps [sum of L, ...], without the last one of each episode."""
    return trees.concatenate([trees.rows(episode.observation, slice(0, -1)) for episode in episodes])


def _spread(values: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Values at these places of `count` rows, zeros between them."""
    found = np.zeros((count, *values.shape[1:]), values.dtype)
    found[places] = values
    return found
