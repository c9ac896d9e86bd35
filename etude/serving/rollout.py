"""Training on what clients play: programs outside, such as a simulator, a game or a robot, that ask for actions over
HTTP. Whoever trains sees a `protocols.Rollout`, and no server.

- The server's event loop runs in a thread of its own (`http`), training in the main thread. While steps are collected,
  the main thread waits and that of the server acts; while the run learns, no action is given: what is collected is of
  the present policy.
- All observations that wait for an action are one forward pass.
- An open episode of a client has a column, as an environment has, and keeps it to its end. As many are played at a time
  as the run has environments; others wait for theirs. Where there are fewer, an episode whose column is full goes on in
  the next free one, whose rows then do not continue those before (`Steps.restarted`).
- A row is complete when the client tells what followed, by asking for the next action or by ending the episode. What is
  stored is what was executed: the action as the client reported it, where it did not take the policy's.
- A client that vanishes leaves the rows whose outcome is known, cut off where it was last seen, and no return.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from safetensors.numpy import save

from etude.base import trees
from etude.base.data import (
    CLIPPED,
    INITIAL_VERSION,
    LOG_PROB,
    RECURRENT_STATE,
    SAMPLED_ACTION,
    EpisodeEnd,
    PolicyVersion,
    Steps,
)
from etude.base.errors import ConfigError
from etude.base.seeding import RunSeed, generator, restore_generator
from etude.base.spaces import Box, Spaces, clipped_to, zeros
from etude.base.trees import Tree
from etude.multi_agent import joint
from etude.protocols import Explorer, Weights
from etude.rollout.actor import Actor, acted
from etude.rollout.collector import EndedEpisode, ended_episodes, joined
from etude.rollout.fragments import StepsRollout
from etude.rollout.state import notes, nowhere
from etude.serving.clients import Clients
from etude.serving.http import Content
from etude.serving.program import LocalPolicy
from etude.serving.server import AgentsServer, PolicyServer, Post, conversion_of


@dataclass(slots=True)
class _ClientRows:
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
class _ClientEpisode:
    """An open episode of a client."""

    recurrent: np.ndarray  # [1, M] the agent's state for the next step
    explorer: np.ndarray  # [1, k] the explorer's
    column: _ClientColumn | None = None
    pending: _ClientRows | None = None  # what the client executes now
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
        self.pending = _ClientRows(trees.rows(post.observation, slice(begin, end)), post.action[begin:end], extras)
        ended = end == len(post.reward) and (post.terminated or post.truncated)
        return Post(
            "end" if ended else "act", post.episode, trees.rows(post.observation, slice(end, end + 1)),
            post.reward[begin:end], terminated=ended and post.terminated, truncated=ended and post.truncated,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class _ClientColumn:
    """What has the place of an environment."""

    number: int
    noise: np.random.Generator
    stream: _ClientEpisode | None = None  # its open episode
    rows: list[_ClientRows] = field(default_factory=list)  # of the present call
    length: int = 0  # how many they are
    next_observation: Tree = None  # [1, ...] that follows them
    open: bool = False  # whether the last row, of this call or before, is one that an episode goes on after
    restarted: bool = False  # whether the next row does not continue it
    episode: int = 0  # how many ended


def steps_of(column: _ClientColumn) -> Steps:
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
    ends = ended_episodes(ended, trees.rows(observation, (slice(0), 0)))
    extras = {name: np.concatenate([part.extras[name] for part in rows])[:, None] for name in rows[0].extras}
    return Steps(
        observation=observation, action=np.concatenate([part.action for part in rows])[:, None], reward=reward,
        terminated=terminated, truncated=truncated, next_observation=column.next_observation,
        columns=np.array([column.number]), restarted=np.array([restarted]), extras=extras, **ends,
    )  # fmt: skip


AT_LEAST = 32  # steps that a client of an off-policy run plays between two posts


class ClientRollout(StepsRollout):
    """Collects what clients play. A `protocols.Rollout`.

    count: the columns. actor_priorities, state_recorded: see `Collector`.
    """

    def __init__(
        self,
        clients: Clients,
        spaces: Spaces,
        count: int,
        actor: Actor,
        explorer: Explorer,
        run_seed: RunSeed,
        actor_priorities: bool = False,
        state_recorded: bool = True,
    ):
        super().__init__(spaces, range(count))
        self._actor, self._explorer, self._actor_priorities = actor, explorer, actor_priorities
        self._state_recorded = state_recorded
        self._bounds = clipped_to(spaces.action)
        self._client_columns = [_ClientColumn(i, generator(run_seed, "explore", i)) for i in range(count)]
        self._streams: dict[str, _ClientEpisode] = {}
        self._vanished = 0
        self._on_policy = self._samples()
        self._local: LocalPolicy | None = None
        self._server = self._made_server(clients)
        # Of the weights that local clients act with; no run that goes on here counts from a number that was before.
        self._version = self._server.oldest = time.time_ns() // 10**6
        self._given: tuple[int, bytes] = (0, b"")  # the newest that a client has asked for, and their version
        self._explored: dict[str, Any] = {}
        self._wants: int | None = None  # how many steps of each column
        self._ended: list[Post] = []  # of local clients, that wait for room for their next episode
        self._server.listen()

    def _made_server(self, clients: Clients) -> PolicyServer:
        made = clients()
        try:
            if self.spaces.agents is not None:
                refused = {"refused": "it plays several agents."}
                return AgentsServer(clients, made, self.spaces, refused)
            conversion = conversion_of(made.observation_space, made.action_space, self.spaces)
        finally:
            made.close()
        try:
            self._local = LocalPolicy(self._actor, self._explorer, self.spaces, conversion)
        except ConfigError as problem:
            return PolicyServer(clients, conversion, self._on_policy, {"refused": str(problem)})
        return PolicyServer(clients, conversion, self._on_policy, self._local.description, self._local.extras)

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        """Rows of these columns, as soon as clients have played them."""
        return _counted(joined(self._collected(positions, steps, step)))

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        return tuple(map(_counted, self._collected(range(self.environments), None, step)))

    def cut(self) -> None:
        """The next steps do not continue the last ones: columns know it by themselves."""

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next action on."""
        self._actor.load(weights, version)
        self._version += 1

    def set_task(self, task: Any) -> None:
        """Tell clients this task when they begin an episode."""
        self._server.task = task

    def warnings(self) -> list[str]:
        """What was lost since the last call."""
        vanished, self._vanished = self._vanished, 0
        if not vanished:
            return []
        silence = self._server.limits.silence
        return [
            f"{vanished} open episode{'s' * (vanished > 1)} of clients did not go on for {silence:g} seconds and count "
            "no more: steps up to there were learned from, their returns are unknown."
        ]

    def _column_states(self) -> list[dict[str, Any]]:
        """The generators and what is counted; open episodes are at the clients."""
        return [nowhere(column.episode, column.noise, self.spaces) for column in self._client_columns]

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        """Clients begin new episodes."""
        for column, saved in zip(self._client_columns, columns, strict=True):
            restore_generator(column.noise, saved["generator"])
            column.episode, column.open = saved["episode"], True
        return notes([i for i, saved in enumerate(columns) if saved["length"]])

    def close(self) -> None:
        """End the server. May be called twice."""
        self._server.close()

    def _samples(self) -> bool:
        """Whether the log probabilities of actions are needed: found by acting once, with noise of its own."""
        observation: Any = trees.map(np.ones_like, zeros(self.spaces.observation, 1))  # all actions are allowed
        output, _ = acted(self._actor, observation, np.zeros((1, self._actor.state_size), np.float32))
        explorer, state = self._explorer.of(np.zeros(1, np.int64)), np.full((1, self._explorer.state_size), np.nan)
        noise = explorer.draw(np.random.default_rng(0), 1, self.spaces.action)
        return LOG_PROB in explorer(output, noise, 0, state).extras

    # -- collecting ----------------------------------------------------------------------------------------------------

    def _collected(self, positions: Sequence[int], steps: int | None, step: int) -> tuple[Steps, ...]:
        """So many rows of each of these columns; None: up to the end of an episode."""
        wanted = [self._client_columns[i] for i in positions]
        self._wants = steps
        if self._local is not None and (explored := self._local.parameters(step)) != self._explored:
            self._explored, self._version = explored, self._version + 1

        def full(column: _ClientColumn) -> bool:
            rows = column.rows
            return bool(rows) and rows[-1].final is not None if steps is None else column.length >= steps

        def take(posts: list[Post]) -> bool:
            for post in posts:
                self._take(post, keep=steps is not None, step=step)
            while self._fill(wanted, full):  # an episode has ended there: others may have its column
                pass
            if all(map(full, wanted)):
                return True
            placed = [stream for stream in self._asking(wanted, full) if self._place(stream, wanted, full)]
            if acting := [stream for stream in placed if stream.asks.kind != "steps"]:  # type: ignore[union-attr]
                self._act(acting, step + sum(column.length for column in wanted))
            for stream in placed:
                if stream.asks is not None:
                    post, stream.asks = stream.asks, None
                    post.answer(self._next(stream.column, steps))
            free = next((column for column in wanted if column.stream is None and not full(column)), None)
            while self._ended and free is not None:
                self._ended.pop().answer(self._next(free, steps))
            return False

        self._server.serve(take, self.stopping)
        return tuple(self._steps_of(column) for column in wanted)

    def _asking(self, wanted: list[_ClientColumn], full: Callable[[_ClientColumn], bool]) -> list[_ClientEpisode]:
        """Those that go on in their column come first, then those without one, then those whose column is full."""
        asking = [stream for stream in self._streams.values() if stream.asks]
        return sorted(asking, key=lambda own: _rank(own.column, wanted, full)) if len(asking) > 1 else asking

    def _fill(self, wanted: list[_ClientColumn], full: Callable[[_ClientColumn], bool]) -> bool:
        """Put steps that clients have acted in into columns. Returns whether an episode has ended so."""
        for stream in self._asking(wanted, full):
            while stream.reports and self._place(stream, wanted, full):
                column = stream.column
                assert column is not None
                post = stream.report(len(stream.asks.reward) if self._wants is None else self._wants - column.length)  # type: ignore[union-attr]
                self._complete(stream, post)
                if post.kind == "end":
                    del self._streams[post.episode]
                    column.stream = None
                    self._ended.append(stream.asks)  # type: ignore[arg-type]
                    return True
        return False

    def _next(self, column: _ClientColumn | None, steps: int | None) -> dict[str, Any]:
        """What a local client does next: how many steps of this column it plays, and with which weights."""
        assert column is not None
        room = self._room(None if steps is None else steps - column.length)
        return {"version": self._version, "room": room, "ahead": steps is not None}

    def _room(self, steps: int | None) -> int:
        size = trees.count_bytes(zeros(self.spaces.observation, 1)) + 64
        most = max(1, self._server.limits.body // (4 * size))
        if steps is None or not self._on_policy:
            steps = max(steps or most, AT_LEAST)
        return min(most, max(1, steps))

    def _place(
        self, stream: _ClientEpisode, wanted: list[_ClientColumn], full: Callable[[_ClientColumn], bool]
    ) -> bool:
        """Whether an episode has a column with room for its next row."""
        column = stream.column
        if column in wanted and not full(column):
            return True
        free = (other for other in wanted if other.stream is None and not full(other))
        found = min(free, key=lambda other: bool(other.rows), default=None)
        if found is None:
            return False
        if column is not None:
            column.stream = None
        stream.column, found.stream = found, stream
        found.restarted |= found.open
        return True

    def _take(self, post: Post, keep: bool, step: int) -> None:
        """One post of a client. keep: whether rows of an episode that ends nowhere are of use."""
        if post.kind == "weights":
            self._give_weights(post, step)
            return
        if post.kind == "gone":
            self._lose(self._streams.pop(post.episode, None), keep)
            return
        stream = self._streams.get(post.episode)
        if stream is None:
            if post.kind == "end":  # no action was asked for
                post.answer({})
                return
            size = np.zeros((1, self._actor.state_size), np.float32)
            stream = self._streams[post.episode] = _ClientEpisode(size, np.full((1, self._explorer.state_size), np.nan))
        if post.kind == "steps":
            stream.asks, stream.taken = post, 0
            return
        if stream.pending is not None:
            self._complete(stream, post)
        if post.kind == "end":
            del self._streams[post.episode]
            if stream.column is not None:
                stream.column.stream = None
            post.answer({"length": stream.length, "return": stream.total})
        else:
            stream.asks = post

    def _give_weights(self, post: Post, step: int) -> None:
        """Answer with the present weights, where they are not those that the client has."""
        assert self._local is not None
        if post.after == self._version:
            post.reply(304, {})
            return
        if self._given[0] != self._version:
            about = {"version": self._version, "room": self._room(self._wants), "ahead": self._wants is not None}
            content = save(self._local.arrays(step), {name: str(value) for name, value in about.items()})
            self._given = self._version, content
        post.reply(200, Content(self._given[1], "application/octet-stream"))

    def _complete(self, stream: _ClientEpisode, post: Post) -> None:
        row, column = stream.pending, stream.column
        assert row is not None and column is not None
        row.reward, stream.pending = np.atleast_1d(post.reward), None
        if self._actor.state_size:
            stream.recurrent = self._actor.rewarded(self._actor.acted(stream.recurrent, row.action), row.reward)
        stream.length, stream.total = stream.length + len(row.reward), stream.total + float(np.sum(post.reward))
        stream.by_agent = stream.by_agent + row.reward.sum(0)
        column.rows.append(row)
        column.length += len(row.reward)
        column.next_observation, column.open = post.observation, True
        if post.kind == "end":
            row.terminated, row.truncated = post.terminated, post.truncated
            row.final = trees.rows(post.observation, 0)
            agents = self._server.agents
            earned = dict(zip(agents, stream.by_agent.tolist(), strict=True)) if agents else None
            row.end = EpisodeEnd(
                column.number, column.episode, stream.length, stream.total, not post.terminated, earned
            )
            column.episode, column.open = column.episode + 1, False

    def _lose(self, stream: _ClientEpisode | None, keep: bool) -> None:
        """Forget an episode whose client has vanished."""
        if stream is None:
            return
        self._vanished += 1
        column = stream.column
        if column is None:
            return
        column.stream = None
        if not keep:
            column.rows, column.length = [], 0
            column.restarted |= column.open
        elif column.rows and column.rows[-1].final is None:
            row = column.rows[-1]
            row.truncated, row.final, column.open = True, self._cut(column.next_observation), False

    def _cut(self, observation: Tree) -> Tree:
        """The last observation [1, ...] of an episode that does not go on; of several agents, who were there."""
        final = trees.rows(observation, 0)
        if self._server.agents:
            there = ~joint.ended(final[joint.STATUS])
            final = {**final, joint.STATUS: np.where(there, joint.TRUNCATED, final[joint.STATUS]).astype(np.int8)}
        return final

    def _act(self, streams: list[_ClientEpisode], step: int) -> None:
        """Answer all that ask, in one forward pass."""
        columns = np.array([stream.column.number for stream in streams])  # type: ignore[union-attr]
        observation = trees.concatenate([stream.asks.observation for stream in streams])  # type: ignore[union-attr]
        noise = np.concatenate([self._draw(stream.column) for stream in streams])
        state = np.concatenate([stream.explorer for stream in streams])
        recurrent = np.concatenate([stream.recurrent for stream in streams])
        output, following = acted(self._actor, observation, recurrent)
        action, extras = self._explorer.of(columns)(output, noise, step, state)
        if isinstance(self.spaces.action, Box) and LOG_PROB in extras and CLIPPED not in extras:
            extras = {**extras, SAMPLED_ACTION: action}
        if self._actor.state_size and self._state_recorded:
            extras = {**extras, RECURRENT_STATE: recurrent}
        executed = action if self._bounds is None else np.clip(action, *self._bounds)
        for i, stream in enumerate(streams):
            one = slice(i, i + 1)
            post, stream.asks = stream.asks, None
            assert post is not None
            stream.explorer, stream.recurrent = state[one], following[one]
            row = _ClientRows(post.observation, executed[one], {name: value[one] for name, value in extras.items()})
            if post.action is not None:
                row.action = post.action
                replaced = {LOG_PROB: np.array([post.log_prob], np.float32), SAMPLED_ACTION: post.action}
                row.extras |= {name: value for name, value in replaced.items() if name in extras}
            stream.pending = row
            post.acted(row.action)

    def _draw(self, column: _ClientColumn | None) -> np.ndarray:
        assert column is not None
        return self._explorer.of(np.array([column.number])).draw(column.noise, 1, self.spaces.action)

    def _steps_of(self, column: _ClientColumn) -> Steps:
        steps = steps_of(column)
        if self._actor_priorities:
            steps.extras["priority"] = self._actor.errors(steps)  # type: ignore[attr-defined]
        return steps


def _rank(column: _ClientColumn | None, wanted: list[_ClientColumn], full: Callable[[_ClientColumn], bool]) -> int:
    if column is None:
        return 1
    return 0 if column in wanted and not full(column) else 2


def _counted(steps: Steps) -> Steps:
    """Without places of episodes that were cut off, which have no return."""
    return replace(steps, episodes=tuple(end for end in steps.episodes if end is not None))
