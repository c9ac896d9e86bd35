"""Views for several agents: each has transitions of its own, from its own action to its own next turn.

Observations, actions and rewards are laid out as in `joint`. Batches have `reward` and `discount` [B, agents] and the
extra `active` [B, agents] float32: 1 where the agent acted in that row and what followed is known, else 0, which is
not to be learned from. An agent's reward is the sum of what it earned up to its next turn; gamma counts its own turns.
"""

from __future__ import annotations

import numpy as np

from etude import ops
from etude.base import trees
from etude.base.data import Batch, power_of_two
from etude.base.errors import ConfigError
from etude.base.trees import Tree
from etude.losses import returns
from etude.multi_agent.joint import (
    ACTING,
    ACTIVE,
    AGENTS,
    STATE,
    STATUS,
    TERMINATED,
    ended,
    state_space,
    without_earlier_ends,
)
from etude.replay.advantages import Advantages, scattered
from etude.replay.ring import Ring
from etude.replay.views import DiscountedView


class MultiAgentTransitions(DiscountedView):
    """Transitions over up to n turns of each agent; fewer where it ends or the stored steps do."""

    def __init__(self, gamma: float, n: int = 1):
        if n < 1:
            raise ConfigError(f"MultiAgentTransitions: n = {n}; expected at least 1 turn.")
        super().__init__(gamma)
        self.n: int = n

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        observation = ring.observation(rows)
        acting = observation[STATUS] == ACTING  # [k, n, agents]
        # On from these rows until every agent that acts there has had its turns.
        row, last = rows, np.broadcast_to(rows[..., None], acting.shape).copy()
        reward, discount = np.zeros(acting.shape, np.float32), np.zeros(acting.shape, np.float32)
        turns, active, open_ = np.zeros(acting.shape, np.int64), np.zeros(acting.shape, bool), acting.copy()
        while True:
            earned, kind = ring.outcome(row)
            reward[open_] += (self.gamma ** turns[open_]).astype(np.float32) * earned[open_]
            status = ring.following_part(STATUS, row)
            last[open_] = np.broadcast_to(row[..., None], acting.shape)[open_]
            turns += open_
            stop = ((kind != 0) | (ring.episodes.until_head(row) == 1))[..., None]
            acts = status == ACTING
            # Out of turn there is nothing yet to bootstrap from.
            turns -= open_ & ~acts & ~ended(status)
            resolved = open_ & (ended(status) | (acts & (stop | (turns == self.n))))
            active |= resolved
            discount[resolved] = (self.gamma ** turns[resolved]) * (status[resolved] != TERMINATED)
            open_ &= ~resolved & ~stop
            if not open_.any():
                break
            # Rows that are through stay where they are.
            row = np.where(open_.any(-1), ring.ahead(row), row)
        # An agent that is not there yet is read with the others: it may join within their turns.
        following = _following(ring, np.where(acting, last, row[..., None]), row)
        following = without_earlier_ends(following, ended(observation[STATUS]))
        batch = self._batch(ring, rows, weight, observation, reward, discount, following)
        batch.extras[ACTIVE] = active.astype(np.float32)
        return batch


def _following(ring: Ring, last: np.ndarray, latest: np.ndarray) -> Tree:
    """What each agent observed after its own last row [k, n, agents], and the global state after the latest of these
    rows [k, n]."""
    if (last == last[..., :1]).all():
        return ring.following(last[..., 0])
    status = np.stack([ring.following_part(STATUS, last[..., i])[..., i] for i in range(last.shape[-1])], -1)
    seen = {}
    for i, name in enumerate(sorted(ring.spaces.observation[AGENTS].spaces)):
        seen[name] = ring.following_part(AGENTS, last[..., i])[name]
    state = {} if state_space(ring.spaces) is None else {STATE: ring.following_part(STATE, latest)}
    return {AGENTS: seen, STATUS: status, **state}


class MultiAgentAdvantages(Advantages):
    """Rows with the extras `advantage`, `value` and `return` [.., agents], by generalised advantage estimation over the
    turns of each agent. Schulman et al. 2016, arXiv:1506.02438, equation 16. There is no next observation.

    value: `value(observations [M, ...]) -> [M, agents]`; see `views.Advantages`. An agent that waits for its turn when
    the rollout ends is bootstrapped from what it observes then.
    """

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        observation = ring.observation(rows)
        reward, _ = ring.outcome(rows)
        batch = self._batch(ring, rows, weight, observation, reward, np.full(reward.shape, self.gamma, np.float32))
        batch.extras.update(self.estimates(ring, rows))
        batch.extras[ACTIVE] = (observation[STATUS] == ACTING).astype(np.float32)
        return batch

    def _estimate(self, ring: Ring) -> dict[str, np.ndarray]:
        """Estimates for every flat row of a ring whose columns hold equally many rows."""
        times, columns = int(ring.filled.max()), ring.environments
        first = ring.head - ring.filled
        slots = (first + np.arange(times)[:, None]) % ring.slots
        rows = slots * columns + np.arange(columns)  # [T, N]
        kind, reward = ring.kind.take(rows), ring.reward[rows].astype(np.float64) * self.reward_scale
        observation, stops = ring.observation(rows), kind != 0
        acting = observation[STATUS] == ACTING
        stops[-1] = True
        over, last = ended(observation[STATUS]), np.flatnonzero(stops)
        before = np.concatenate([np.ones_like(over[:1]), over[:-1]])
        observation = trees.flat(without_earlier_ends(observation, before))
        # Engines compile for each new number of observations: fill up to one that most rollouts share.
        room = power_of_two(len(last))
        padded = np.append(last, np.repeat(last[:1], room - len(last)))
        final = without_earlier_ends(ring.following(rows.reshape(-1)[padded]), over.reshape(rows.size, -1)[padded])
        observations = trees.concatenate([observation, final])
        values, expected = np.asarray(self.value(observations), np.float64), (rows.size + room, over.shape[-1])
        if values.shape != expected:
            raise ConfigError(
                f"`value` returned shape {values.shape} for {rows.size + room} observations of several agents; "
                f"expected {expected}, one number for each agent."
            )
        value, after = values[: rows.size].reshape(*rows.shape, -1), values[rows.size :][: len(last)]
        status = ring.following_part(STATUS, rows)
        next_value = np.concatenate([value[1:], value[:1]])
        next_value[stops] = after
        next_value = np.where(status == TERMINATED, 0.0, next_value)
        cut = ended(status) | stops[..., None]  # the agent has no further turn after this step; `next_value` counts
        # For each agent and step: the rewards up to its next turn, and the value there.
        acts_next, value_next, none = np.zeros_like(acting), np.zeros(value.shape), np.zeros(value.shape[1:])
        acts_next[:-1], value_next[:-1] = acting[1:], value[1:]
        waits = (~cut & ~acts_next).astype(np.float64)
        at_turn = np.where(cut, next_value, np.where(acts_next, value_next, 0.0))
        reward, next_value = (ops.linear_recurrence(x, waits, none) for x in (reward, at_turn))
        # A step out of turn has no error of its own, and passes on undiscounted what the next turn brings.
        reward, own, next_value = (np.where(acting, x, 0.0) for x in (reward, value, next_value))
        discount, trace = np.where(acting, self.gamma, 1.0), np.where(acting, self.gae_lambda, 1.0) * ~cut
        advantage = np.where(acting, returns.advantages(reward, discount, own, next_value, trace), 0.0)
        found = {"advantage": advantage, "value": value * acting, "return": (advantage + value) * acting}
        return {name: scattered(ring.rows, rows, estimate) for name, estimate in found.items()}
