"""What clients play, on its way into `Steps`: transitions as far as they are known, episodes, and the columns that they
are put into."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from etude.base import trees
from etude.base.data import EpisodeEnd, Steps
from etude.base.trees import Tree
from etude.rollout.rows import EndedEpisode, EndedEpisodes
from etude.serving.server import Post


@dataclass(slots=True)
class ClientRow:
    """A transition, as far as it is known; arrays have an axis of one environment."""

    observation: Tree
    action: np.ndarray
    extras: dict[str, np.ndarray]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: Tree = None  # [...] the last observation, where an episode ended
    end: EpisodeEnd | None = None


@dataclass(slots=True, eq=False)
class ClientEpisode:
    """An open episode of a client."""

    recurrent: np.ndarray  # [1, M] the agent's state for the next step
    explorer: np.ndarray  # [1, k] the explorer's
    column: ClientColumn | None = None
    pending: ClientRow | None = None  # what the client executes now
    asks: Post | None = None  # for an action, or for what to do next
    waiting: deque[tuple[ClientRow, Tree]] = field(default_factory=deque)  # steps without room yet, what follows
    length: int = 0
    total: float = 0.0


@dataclass(slots=True, eq=False)
class ClientColumn:
    """What has the place of an environment."""

    number: int
    noise: np.random.Generator
    stream: ClientEpisode | None = None  # its open episode
    rows: list[ClientRow] = field(default_factory=list)  # of the present call
    next_observation: Tree = None  # [1, ...] that follows them
    open: bool = False  # whether the last row, of this call or before, is one that an episode goes on after
    restarted: bool = False  # whether the next row does not continue it
    episode: int = 0  # how many ended


def rows_of(post: Post) -> Iterator[tuple[ClientRow, Tree]]:
    """The steps of a chunk, and what follows each."""
    assert post.action is not None
    last = len(post.action) - 1
    for i in range(last + 1):
        one = slice(i, i + 1)
        extras = {name: value[one] for name, value in post.extras.items()}
        row = ClientRow(trees.rows(post.observation, one), post.action[one], extras, float(post.reward[i]))
        row.terminated, row.truncated = post.terminated and i == last, post.truncated and i == last
        yield row, trees.rows(post.observation, slice(i + 1, i + 2))


def steps_of(column: ClientColumn) -> Steps:
    """The rows of a column, which is empty then."""
    rows, column.rows = column.rows, []
    restarted, column.restarted = column.restarted, False
    observation = trees.stack([row.observation for row in rows])
    ended = [EndedEpisode(t, 0, row.final, row.end) for t, row in enumerate(rows) if row.final is not None]  # type: ignore[arg-type]
    ends = EndedEpisodes.of(ended, trees.rows(observation, (slice(0), 0)))
    return Steps(
        observation=observation,
        action=np.stack([row.action for row in rows]),
        reward=np.array([[row.reward] for row in rows], np.float32),
        terminated=np.array([[row.terminated] for row in rows]),
        truncated=np.array([[row.truncated] for row in rows]),
        next_observation=column.next_observation,
        final_observation=ends.observation,
        final_index=ends.index,
        columns=np.array([column.number]),
        restarted=np.array([restarted]),
        extras={name: np.stack([row.extras[name] for row in rows]) for name in rows[0].extras},
        episodes=ends.episodes,
    )
