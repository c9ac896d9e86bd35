"""Whole games of tokens, for networks that read sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Batch
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import ACTION_MASK
from etude.losses.preferences import group_advantages
from etude.replay.ring import Ring
from etude.replay.selectors import BestEpisodes, Selection
from etude.replay.views import OneStep, RingView, discounts, scaled


class TokenSequences(OneStep):
    """Whole episodes of a `language.TokenEnvironment`, one for each row [k, n] that begins one: every array is
    [k, n, L, ...], with a place for each token of the world and of the agent, but `weight` and `index` [k, n].

    L is the first number that no game of the call is longer than, of 8, 12, 16, 24, 32, 48, ..., the context: so that
    engines compile few sizes. Places after the last token of a game hold 0.

    observation: the tokens, int32, in the place of each window; an action mask beside it is that of each token of the
        agent, and allows all else. action: the tokens, too.
    reward: of each token of the agent; 0 for those of the world. discount: gamma, or 0 where the game terminated there,
        and at tokens of the world.
    next_observation: None.
    extras: mine, 1 where the token is the agent's, else 0, float32; next_place, int32: how many tokens there are before
        the agent's next one, or at the end of the game, for each token of the agent; 0 for those of the world.

    The outputs [L + 1] of `networks.tokens.TokenNetwork.whole(observation)` at i are those before token i: `[:, :-1]`
    belongs to the actions, and the value of the next state of the agent is at `next_place`. The mean loss of a batch is
    `sum(mine * loss) / sum(mine)`.
    """

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        start = rows.reshape(-1)
        last = ring.episodes.after(start)
        times = np.arange(last.max() + 1)
        path = ring.ahead(start[:, None], np.minimum(times, last[:, None]))  # [B, T]
        real = times <= last[:, None]
        seen, final = ring.observation(path), _window(ring.following(path[:, -1]))
        count, before = final[:, -1].astype(np.int64), _window(seen)[..., -1].astype(np.int64)
        context, action = final.shape[-1] - 1, ring.actions(path)
        # What a game does not have is put into one more place.
        length = padded_length(int(count.max()), context)
        place = np.where(real, before, length)
        following = np.append(before[:, 1:], count[:, None], 1)
        following[np.arange(len(start)), last] = count
        tokens = np.where(np.arange(length) < count[:, None], final[:, :length], 0).astype(np.int32)
        said = np.take_along_axis(final, np.minimum(place, context - 1), 1)
        if ((following <= before) & real).any() or ((said != action) & real).any():
            raise DataError(
                "The last observation of an episode does not hold all of its tokens: its context was too short for it. "
                "Record it again with a larger context."
            )

        def placed(values: Any, dtype: Any = np.float32, rest: int = 0) -> np.ndarray:
            """[B, T, ...] at the places of the agent's tokens: [k, n, L, ...]."""
            array = np.full((len(start), length + 1, *np.shape(values)[2:]), rest, dtype)
            array[np.arange(len(start))[:, None], place] = values
            return array[:, :-1].reshape(*rows.shape, length, *array.shape[2:])

        reward, kind = ring.outcome(path)
        tokens = tokens.reshape(*rows.shape, length)
        observation: Any = tokens
        if isinstance(seen, dict):
            observation = {
                key: placed(leaf, leaf.dtype, 1) if key == ACTION_MASK else tokens for key, leaf in seen.items()
            }
        return Batch(
            observation=observation,
            action=tokens,
            reward=placed(scaled(reward, self.reward_scale)),
            discount=placed(discounts(self.gamma).take(kind)),
            next_observation=None,
            weight=weight,
            index=rows,
            extras={
                "mine": placed(np.ones(path.shape)),
                "next_place": placed(following, np.int32),
                **{name: placed(values) for name, values in ring.stored(path).items()},
            },
        )


def _window(observation: Any) -> np.ndarray:
    return next(leaf for path, leaf in trees.items(observation, "") if ACTION_MASK not in path)


def padded_length(longest: int, context: int) -> int:
    """The length that sequences are padded to, the longest of which has so many tokens."""
    steps = (size * 2**i for i in range(64) for size in (8, 12))
    return min(context, next(size for size in steps if size >= longest))


class TokenGroups(TokenSequences):
    """The same of a ring whose columns hold one game each, of which `size` next to each other began alike. The ring has
    the extra `log_prob` of each token of the agent, which the batch then has, too.

    extras: advantage [k, n]: the return of a game, which is not discounted, against those of its group
        (`losses.preferences.group_advantages`). scaled: see there.
    """

    def __init__(self, gamma: float, size: int, scaled: bool = True):
        super().__init__(gamma)
        self.size, self.scaled = size, scaled

    def __call__(self, ring: Any, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = super().__call__(ring, rows, weight)
        slot = (ring.head - ring.filled) % ring.slots
        earned = _episode_returns(ring, slot * ring.environments + np.arange(ring.environments))
        advantage = group_advantages(scaled(earned, self.reward_scale), self.size, self.scaled)
        batch.extras["advantage"] = advantage.astype(np.float32).take(rows % ring.environments)
        return batch


class PreferencePairs(BestEpisodes):
    """First rows [k, n] of whole episodes in n / 2 pairs, one after the other: two that began with the same
    observation, of which the first has the higher return. One of a pair is drawn like the first rows of `BestEpisodes`,
    among those with a partner, and its partner uniformly. ConfigError where no two episodes make a pair."""

    def __init__(self, best: float = 1.0):
        super().__init__(best, first=True)
        self._ties = self._group = np.zeros((0, 2), np.int64)  # where equal ones begin and end

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        rows = self.rows(ring)
        if n % 2:
            raise ConfigError(
                f"{n} games of one source in a batch; expected an even number, two of each pair. Learn from one source."
            )
        ties, group = self._ties, self._group
        others = np.diff(group)[:, 0] - np.diff(ties)[:, 0]
        some = np.flatnonzero(others)
        one = some[rng.integers(0, len(some), (k, n // 2))]
        other = group[one, 0] + rng.integers(0, others[one])
        other += np.where(other >= ties[one, 0], ties[one, 1] - ties[one, 0], 0)
        places = np.stack([np.maximum(one, other), np.minimum(one, other)], -1).reshape(k, n)
        return rows[places], np.ones((k, n), np.float32)

    def _found(self, ring: Ring) -> np.ndarray:
        rows = super()._found(ring)
        began = np.unique(_window(ring.observation(rows)), axis=0, return_inverse=True)[1].reshape(-1)
        earned = _episode_returns(ring, rows)
        order = np.lexsort((earned, began))
        began, earned = began[order], earned[order]
        equal = np.cumsum(np.append(False, (np.diff(began) != 0) | (np.diff(earned) != 0)))
        self._group, self._ties = (
            np.stack([np.searchsorted(x, x, side) for side in ("left", "right")], -1) for x in (began, equal)
        )
        if (self._group == self._ties).all():
            raise ConfigError(
                f"No two of {len(rows)} episodes began alike and differ in their returns; pairs of a better and a "
                "worse one are learned from. Record more games of each beginning."
            )
        return rows[order]


def _episode_returns(ring: Ring, starts: np.ndarray) -> np.ndarray:
    """The sum of rewards [n] of the episodes that begin with these rows."""
    last = ring.episodes.after(starts)
    times = np.arange(last.max() + 1)
    earned = ring.reward.take(ring.ahead(starts[:, None], np.minimum(times, last[:, None])))
    return np.where(times <= last[:, None], earned, 0.0).sum(1)
