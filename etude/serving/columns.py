"""What clients play, on its way into `Steps`: transitions as far as they are known, episodes, and the columns that they
are put into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import EpisodeEnd, Steps
from etude.base.trees import Tree
from etude.rollout.rows import EndedEpisode, EndedEpisodes
from etude.serving.server import Post


@dataclass(slots=True)
class ClientRows:
    """n transitions of an episode in a row, as far as they are known: one that the run has acted in, or those that a
    client has. The last one may end the episode."""

    observation: Tree  # [n, ...]
    action: np.ndarray  # [n, ...]
    extras: dict[str, np.ndarray]  # [n, ...]
    reward: np.ndarray = field(default_factory=lambda: np.zeros(1))  # [n], of several agents [n, agents]
    terminated: bool = False
    truncated: bool = False
    final: Tree = None  # [...] the last observation, where the episode ended
    end: EpisodeEnd | None = None


@dataclass(slots=True, eq=False)
class ClientEpisode:
    """An open episode of a client."""

    recurrent: np.ndarray  # [1, M] the agent's state for the next step
    explorer: np.ndarray  # [1, k] the explorer's
    column: ClientColumn | None = None
    pending: ClientRows | None = None  # what the client executes now
    asks: Post | None = None  # for an action, or for what to do next
    taken: int = 0  # of the steps that it reports, how many are in a column
    length: int = 0
    total: float = 0.0
    by_agent: Any = 0.0  # of several, their returns

    @property
    def reports(self) -> bool:
        """Whether it has acted in steps that no column has had room for."""
        post = self.asks
        return post is not None and post.kind == "steps" and self.taken < len(post.reward)

    def report(self, n: int) -> Post:
        """The next n of these steps, or fewer, as what is pending; returns what the client tells of them."""
        post, begin = self.asks, self.taken
        assert post is not None and post.action is not None
        self.taken = end = min(begin + n, len(post.reward))
        extras = {name: value[begin:end] for name, value in post.extras.items()}
        self.pending = ClientRows(trees.rows(post.observation, slice(begin, end)), post.action[begin:end], extras)
        ended = end == len(post.reward) and (post.terminated or post.truncated)
        return Post(
            "end" if ended else "act", post.episode, trees.rows(post.observation, slice(end, end + 1)),
            post.reward[begin:end], terminated=ended and post.terminated, truncated=ended and post.truncated,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class ClientColumn:
    """What has the place of an environment."""

    number: int
    noise: np.random.Generator
    stream: ClientEpisode | None = None  # its open episode
    rows: list[ClientRows] = field(default_factory=list)  # of the present call
    length: int = 0  # how many they are
    next_observation: Tree = None  # [1, ...] that follows them
    open: bool = False  # whether the last row, of this call or before, is one that an episode goes on after
    restarted: bool = False  # whether the next row does not continue it
    episode: int = 0  # how many ended


def steps_of(column: ClientColumn) -> Steps:
    """The rows of a column, which is empty then."""
    rows, column.rows, column.length = column.rows, [], 0
    restarted, column.restarted = column.restarted, False
    observation = trees.map(lambda leaf: leaf[:, None], trees.concatenate([part.observation for part in rows]))
    reward = np.concatenate([part.reward for part in rows]).astype(np.float32)[:, None]
    terminated, truncated, ended, t = np.zeros((len(reward), 1), bool), np.zeros((len(reward), 1), bool), [], -1
    for part in rows:
        t += len(part.reward)
        terminated[t], truncated[t] = part.terminated, part.truncated
        if part.final is not None:
            ended.append(EndedEpisode(t, 0, part.final, part.end))  # type: ignore[arg-type]
    ends = EndedEpisodes.of(ended, trees.rows(observation, (slice(0), 0)))
    return Steps(
        observation=observation,
        action=np.concatenate([part.action for part in rows])[:, None],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_observation=column.next_observation,
        final_observation=ends.observation,
        final_index=ends.index,
        columns=np.array([column.number]),
        restarted=np.array([restarted]),
        extras={name: np.concatenate([part.extras[name] for part in rows])[:, None] for name in rows[0].extras},
        episodes=ends.episodes,
    )
