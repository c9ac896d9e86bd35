"""Learning from replayed transitions, as the papers say it: one program of loops over rows.

It is told what a run collected and learned, in order, and holds both against its own count of rows, phases, gradient
steps, target copies, priorities, moments and schedules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from scripted_worlds import TERMINATED, TRUNCATED, Script, label, told
from watched import Collection, GradientStep, Phase, watched_events

import etude

COLLECTED = "sampler"


@dataclass
class Row:
    """One stored transition."""

    place: tuple[str, int]  # what it is from, and the column
    number: int  # among all of its column
    observation: Any
    action: Any
    reward: Any
    terminated: bool
    truncated: bool
    following: Any
    key: tuple[int, int]  # its episode and time
    error: float = 1.0  # the size of its last reported error; of a new one, the largest so far

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


class SlowReplay:
    """The rows of a run of one agent, and what is due.

    recorded: recorded episodes by name. shares: those of a batch, by name; None: all rows are what the run collects.
    """

    def __init__(
        self,
        config: Any,
        environments: int,
        script: Sequence[Script],
        space: gym.Space,
        recorded: dict[str, Sequence[Any]] | None = None,
        shares: dict[str, float] | None = None,
    ):
        self.config, self.environments, self.script, self.space = config, environments, script, space
        self.shares = {COLLECTED: 1.0} if shares is None else shares
        self.columns: dict[tuple[str, int], list[Row]] = {(COLLECTED, n): [] for n in range(environments)}
        self.step, self.total, self.gradient_steps = 0, 0, 0
        self.largest = dict.fromkeys(self.shares, 1.0)
        self.reported = dict.fromkeys(self.shares, False)
        self.clock = self.copied = 0.0  # sums of learning rates: at present, and when the target was copied last
        self.returns: list[float] = []  # discounted, after each step
        self.running = [0.0] * max(environments, 1)
        self.seen: list[Any] = []  # observations in the normaliser
        self.unseen: list[Any] = []  # those of the newest collection
        self.due = self.over = 0  # gradient steps; steps of the run that they are for
        for name, episodes in (recorded or {}).items():
            for episode in episodes:
                for t in range(len(episode.action)):
                    last = t + 1 == len(episode.action)
                    ends = last and episode.terminated, last and episode.truncated
                    seen = of(episode.observation, t), of(episode.observation, t + 1)
                    self._store((name, 0), seen[0], episode.action[t], float(episode.reward[t]), *ends, seen[1])
        self.seen, self.unseen = self.unseen, []

    # -- what is collected ---------------------------------------------------------------------------------------------

    def collect(self, entry: Collection) -> None:
        """Store what was collected, and count what is due."""
        assert self.due == 0, f"{self.due} gradient steps were due at step {self.step}"
        self.seen, self.unseen = self.seen + self.unseen, []
        before, every = self.step, self.config.train_every
        for part in entry.steps:
            following = part.next_observations()
            for column in part.columns[part.restarted].tolist():
                self.restart(column)
            for t, n in np.ndindex(part.shape):
                seen, ends = of(part.observation, t, n), (bool(part.terminated[t, n]), bool(part.truncated[t, n]))
                place = COLLECTED, int(part.columns[n])
                self._store(place, seen, part.action[t, n], part.reward[t, n], *ends, of(following, t, n))
            self.step += len(part)
        assert entry.step == self.step
        longest = max(len(part.reward) for part in entry.steps)
        assert (before + (longest - 1) * self.environments) // every == before // every, "a phase was passed by"
        phases = self.step // every - before // every
        self.due = phases * self.config.gradient_steps * (self.step >= self.config.learning_starts)
        self.over = phases * every

    def restart(self, column: int) -> None:
        """What comes next does not continue what a column holds: that ends there, as if it had been truncated."""
        rows = self.columns[COLLECTED, column]
        if rows and not rows[-1].ends:
            rows[-1].truncated = True
        self.running[column] = 0.0

    def _store(
        self, place: tuple[str, int], seen: Any, action: Any, reward: Any, terminated: bool, truncated: bool, after: Any
    ) -> None:
        column = self.columns.setdefault(place, [])
        row = Row(
            place,
            len(column),
            seen,
            action,
            reward,
            terminated,
            truncated,
            after,
            self.key(seen),
            self.largest[place[0]],
        )
        self.check_world(row)
        column.append(row)
        self.unseen.append(row.observation)
        self._returned(row)

    def _returned(self, row: Row) -> None:
        """The discounted return after a step."""
        place = row.place
        reward = np.sign(row.reward) if self.config.clip_reward else row.reward
        self.running[place[1]] = self.config.gamma * self.running[place[1]] + reward
        self.returns.append(self.running[place[1]])
        if row.ends:
            self.running[place[1]] = 0.0

    def check_world(self, row: Row) -> None:
        """Hold a transition against the script: it is what happened, and its action is what was executed."""
        before, after = label(plain(row.observation)), label(plain(row.following))
        script = self.script[before.seed % len(self.script)]
        assert (after.seed, after.time) == (before.seed, before.time + 1)
        assert after.illegal == 0
        assert row.reward == script.reward(before.time)
        over = after.time == script.length
        assert (row.terminated, row.truncated) == tuple(
            over and script.how in (how, "both") for how in (TERMINATED, TRUNCATED)
        )
        np.testing.assert_allclose(after.action, told(self.space, self.executed(row.action)), rtol=1e-5, atol=1e-6)

    def executed(self, action: Any) -> Any:
        """A stored action as the environment takes it: those of a Box are stored in [-1, 1]."""
        if not isinstance(self.space, gym.spaces.Box):
            return action
        return self.space.low + (self.space.high - self.space.low) * (action + 1.0) / 2.0

    def stored(self, name: str = COLLECTED) -> list[Row]:
        """The rows of a source that can be sampled: of what is collected, the newest ones of each column."""
        columns = [rows for (source, _), rows in self.columns.items() if source == name]
        if name != COLLECTED:
            return [row for rows in columns for row in rows]
        return [row for rows in columns for row in rows[-self.most :]]

    def set(self, name: str, otherwise: Any) -> Any:
        """A field of the config, where it has it."""
        return getattr(self.config, name, otherwise)

    @property
    def most(self) -> int:
        """How many rows of a column are kept."""
        return self.config.buffer_size // self.environments

    # -- what is learned from ------------------------------------------------------------------------------------------

    def learn(self, phase: Phase) -> None:
        """Hold a learning phase against what is due."""
        assert phase.step == self.step
        assert len(phase.calls) == self.due, f"at step {self.step}"
        rows = {row.key: row for name in self.shares for row in self.stored(name)}
        drawn = [self.sampled(call, rows) for call in phase.calls]
        for call, batch in zip(phase.calls, drawn, strict=True):
            assert len(batch) == self.config.batch_size
            self._check_schedules(call.hyper)
            self._check_shares(batch)
            self.check_batch(call, batch)
            self.gradient_steps += 1
            if "clock" in call.more:
                self._check_clock(call)
        for call, batch in zip(phase.calls, drawn, strict=True):
            if self.set("priority_exponent", 0.0):
                self._report(batch, call.more["td_error"])
        self.due = 0
        assert phase.gradient_steps == self.gradient_steps
        for rule in phase.adjusted:
            self.config = dataclasses.replace(
                self.config, **{rule.name: type(getattr(self.config, rule.name))(rule.after)}
            )

    def key(self, observation: Any) -> tuple[int, int]:
        """The episode and the time that an observation tells."""
        return key(observation)

    def sampled(self, call: GradientStep, rows: dict[tuple[int, int], Row]) -> list[Row]:
        """The rows that a batch was drawn by."""
        return [rows[key(observation)] for observation in rows_of(call.observation)]

    def _check_schedules(self, hyper: dict[str, float]) -> None:
        for own in dataclasses.fields(self.config):
            value = getattr(self.config, own.name)
            if isinstance(value, float | etude.Linear) and own.name in hyper:
                assert math.isclose(hyper[own.name], self.scheduled(value), rel_tol=1e-4, abs_tol=1e-7), own.name

    def scheduled(self, value: float | etude.Linear) -> float:
        """A number, or the mean of a straight line over the steps that the phase is for."""
        if not isinstance(value, etude.Linear):
            return value
        last = max(1.0, value.fraction * self.total)
        points = self.step - self.over * (np.arange(2000) + 0.5) / 2000
        return float(np.mean(value.start + (value.end - value.start) * np.minimum(1.0, points / last)))

    def _check_clock(self, call: Any) -> None:
        assert math.isclose(call.more["clock"], self.clock, rel_tol=1e-4, abs_tol=1e-4)
        assert math.isclose(call.more["copied"], self.copied, rel_tol=1e-4, abs_tol=1e-4)
        self.clock += call.hyper["learning_rate"]
        if self.gradient_steps % self.config.target_update_every == 0:
            self.copied = self.clock

    def check_batch(self, call: GradientStep, batch: list[Row]) -> None:
        """Hold what a batch says of its rows against what was collected."""
        rewards, discounts, last = zip(*(self.n_steps(row) for row in batch), strict=True)
        np.testing.assert_array_equal(plain(call.observation), [plain(row.observation) for row in batch])
        np.testing.assert_array_equal(call.action, [row.action for row in batch])
        np.testing.assert_allclose(call.reward, np.array(rewards) * self.factor, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(call.discount, discounts, rtol=1e-5)
        np.testing.assert_array_equal(plain(call.next_observation), [plain(row.following) for row in last])
        for seen in (call.observation, call.next_observation):
            if isinstance(seen, dict):
                self._check_masks(seen)
        self.check_weights(call, batch)

    def _check_masks(self, seen: dict[str, Any]) -> None:
        """Where there is no mask, everything is legal."""
        for mask, observation in zip(seen["action_mask"], seen["observation"], strict=True):
            found = label(observation)
            script = self.script[found.seed % len(self.script)]
            if found.time < script.length:
                assert mask.astype(bool).tolist() == list(script.mask(found.time) or [True] * len(mask))

    def check_weights(self, call: GradientStep, batch: list[Row]) -> None:
        """Hold importance weights and normalised observations against those of the papers."""
        np.testing.assert_allclose(call.weight, self.weights(batch, call.hyper), rtol=1e-4)
        if self.config.normalize_observation:
            expected = [self.normalised(x) for x in rows_of(call.observation)]
            np.testing.assert_allclose(call.more["normalised"], expected, rtol=2e-3, atol=2e-3)

    def n_steps(self, row: Row) -> tuple[float, float, Row]:
        """Rewards over n steps, or up to the end of the episode or of what is stored; the discount; the last row."""
        reward, discount = 0.0, 1.0
        for last in self.columns[row.place][row.number : row.number + self.set("n_step", 1)]:
            reward += discount * (np.sign(last.reward) if self.config.clip_reward else last.reward)
            discount *= self.config.gamma
            if last.ends:
                break
        return reward, 0.0 if last.terminated else discount, last

    @property
    def factor(self) -> float:
        """What rewards are multiplied by."""
        return 1.0 / math.sqrt(np.var(self.returns) + 1e-8) if self.config.normalize_reward else 1.0

    def normalised(self, observation: Any) -> np.ndarray:
        """An observation by the moments of all that were collected before the newest ones."""
        if not self.seen:
            return np.clip(observation, -10, 10)
        seen = np.array(self.seen, np.float64)
        return np.clip((observation - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10)

    # -- by which probability it is drawn ------------------------------------------------------------------------------

    def _check_shares(self, batch: list[Row]) -> None:
        """Ball et al. 2023: fixed shares of every batch. Schaul et al. 2016, appendix B.2.1: one draw in each n-th of
        the priorities' sum, so that no row comes oftener, or less often, than expected by 2."""
        sources = [row.place[0] for row in batch]
        assert sources == sorted(sources, key=list(self.shares).index)
        for name, share in self.shares.items():
            number = sources.count(name)
            assert abs(number - share * len(batch)) < 1
            if not self.set("priority_exponent", 0.0) or not number:
                continue
            stored = self.stored(name)
            total = sum(self.priority(row) for row in stored)
            for row in stored:
                times = sum(other is row for other in batch)
                assert abs(times - number * self.priority(row) / total) < 2

    def priority(self, row: Row) -> float:
        """Schaul et al. 2016, section 3.3."""
        return (row.error + 1e-6) ** self.set("priority_exponent", 0.0)

    def weights(self, batch: list[Row], hyper: dict[str, float]) -> list[float]:
        """Section 3.4: (N P)**-beta, over the largest of the batch; of several sources, P within its own."""
        if not self.set("priority_exponent", 0.0):
            return [1.0] * len(batch)
        total, beta = {}, hyper["importance_exponent"]
        for name in self.shares:
            stored = self.stored(name)
            total[name] = sum(self.priority(row) for row in stored) / max(1, len(stored))
        found = [(self.priority(row) / total[row.place[0]]) ** -beta for row in batch]
        return [weight / max(found) for weight in found]

    def _report(self, batch: list[Row], errors: np.ndarray) -> None:
        for name in self.shares:
            own = [(row, abs(float(e))) for row, e in zip(batch, errors, strict=True) if row.place[0] == name]
            if own:
                largest = max(size for _, size in own)
                self.largest[name] = max(largest, self.largest[name]) if self.reported[name] else largest
                self.reported[name] = True
            for row, size in own:
                row.error = size


class SlowSequences(SlowReplay):
    """Kapturowski et al. 2019, section 2.3: runs of steps of one episode, which start up to `burn_in` steps before the
    row that was drawn. An agent's state counts the steps of its episode."""

    def sampled(self, call: GradientStep, rows: dict[tuple[int, int], Row]) -> list[Row]:
        starts = [rows[key(observations[0])] for observations in call.observation]
        places = np.argmax(call.extras["mask"], 1)
        return [self.columns[s.place][s.number + int(at)] for s, at in zip(starts, places, strict=True)]

    def check_batch(self, call: GradientStep, batch: list[Row]) -> None:
        length, config = self.config.sequence_length, self.config
        for i, row in enumerate(batch):
            column, first = self.columns[row.place], row
            oldest = max(0, len(column) - self.most)
            for _ in range(config.burn_in):
                if first.number > oldest and not column[first.number - 1].ends:
                    first = column[first.number - 1]
            run = [first]
            while len(run) < length and not run[-1].ends and run[-1].number + 1 < len(column):
                run.append(column[run[-1].number + 1])
            left = length - len(run)
            counted = [float(other.number >= row.number) for other in run]
            assert call.extras["mask"][i].tolist() == counted + [0.0] * left
            forgotten = first.number == oldest and len(column) >= self.most
            begins = {first.key[1] == 0, first.key[1] == 0 and not forgotten}  # it may be
            assert call.extras["first"][i].tolist() in [[float(begin)] + [0.0] * (length - 1) for begin in begins]
            if config.stored_state:
                assert call.extras["recurrent_state"][i].tolist() == [float(first.key[1])]
            padded = run + [run[-1]] * left
            np.testing.assert_array_equal(call.observation[i], [other.observation for other in padded])
            np.testing.assert_array_equal(call.action[i], [other.action for other in padded])
            np.testing.assert_array_equal(call.next_observation[i][: len(run)], [other.following for other in run])
            rewards = [np.sign(other.reward) if config.clip_reward else other.reward for other in run]
            expected = [reward * self.factor for reward in rewards] + [0.0] * left
            np.testing.assert_allclose(call.reward[i], expected, rtol=1e-4, atol=1e-5)
            discounts = [0.0 if other.terminated else config.gamma for other in run] + [0.0] * left
            np.testing.assert_allclose(call.discount[i], discounts, rtol=1e-5)
        self.check_weights(call, batch)

    def normalised(self, observation: Any) -> np.ndarray:
        return np.array([super(SlowSequences, self).normalised(x) for x in observation])


class SlowHindsight(SlowReplay):
    """Andrychowicz et al. 2017: goals that were achieved later in the episode, or at its end, or in all of it."""

    def check_world(self, row: Row) -> None:
        script = self.script[label(plain(row.observation)).seed % len(self.script)]
        reward, done = outcome(row.following["achieved_goal"], row.observation["desired_goal"])
        over = label(plain(row.following)).time == script.length
        assert row.reward == reward
        assert row.terminated == (done or (over and script.how in (TERMINATED, "both")))
        assert row.truncated == (over and script.how in (TRUNCATED, "both"))

    def check_batch(self, call: GradientStep, batch: list[Row]) -> None:
        for i, row in enumerate(batch):
            goal = call.observation["desired_goal"][i]
            found = [self.n_steps(row)] if np.array_equal(goal, row.observation["desired_goal"]) else []
            if any(np.array_equal(goal, other.following["achieved_goal"]) for other in self.reached(row)):
                found.append(self.under(row, goal))
            assert found, "the goal is neither the row's own nor achieved where the strategy says"
            np.testing.assert_array_equal(call.action[i], row.action)
            assert any(
                math.isclose(call.reward[i], reward * self.factor, rel_tol=1e-4, abs_tol=1e-5)
                and math.isclose(call.discount[i], discount, rel_tol=1e-5)
                and all(
                    np.array_equal(call.next_observation[name][i], goal if name == "desired_goal" else x)
                    for name, x in last.following.items()
                )
                for reward, discount, last in found
            )
            for name in ("observation", "achieved_goal"):
                np.testing.assert_array_equal(call.observation[name][i], row.observation[name])
        self.check_weights(call, batch)

    def reached(self, row: Row) -> list[Row]:
        """The steps whose outcome may be the goal."""
        episode = [other for other in self.stored() if other.key[0] == row.key[0]]
        later = [other for other in episode if other.number >= row.number]
        return {"future": later, "final": later[-1:], "episode": episode}[self.config.hindsight]

    def under(self, row: Row, goal: np.ndarray) -> tuple[float, float, Row]:
        """The transition under another goal: where it is reached, the episode ends; elsewhere it would have gone on."""
        reward, discount, done = 0.0, 1.0, False
        for last in self.columns[row.place][row.number : row.number + self.set("n_step", 1)]:
            earned, done = outcome(last.following["achieved_goal"], goal)
            reward += discount * earned
            discount *= self.config.gamma
            if done or last.ends:
                break
        return reward, 0.0 if done else discount, last


class SlowRecorded(SlowReplay):
    """The same from recorded data alone: all steps are gradient steps, in phases of 100, or as many as the config says,
    and fewer at the end of a call."""

    phase = 100

    def begin(self, length: int) -> None:
        """A call that takes so many gradient steps."""
        self.left = length

    def learn(self, phase: Phase) -> None:
        self.due = self.over = min(self.phase, self.left)
        self.left -= self.due
        self.step += self.due
        super().learn(phase)


class ActsByClock:
    """A mixin before a slow program, for agents that act by the gradient steps that their weights had seen."""

    clock: float

    def collect(self, entry: Any) -> None:
        for part in entry.steps:
            np.testing.assert_allclose(part.action, self.clock, atol=0.5 + 1e-3)
        super().collect(entry)  # type: ignore[misc]


def outcome(achieved: np.ndarray, goal: np.ndarray) -> tuple[float, bool]:
    """The reward of a step that led to `achieved`, and whether it ends the episode."""
    return -float(abs(achieved[0] - goal[0])), bool(achieved[0] == goal[0])


def plain(observation: Any) -> np.ndarray:
    """The part of an observation that tells where it is."""
    return observation["observation"] if isinstance(observation, dict) else observation


def key(observation: Any) -> tuple[int, int]:
    """The episode and the time that an observation tells."""
    found = label(plain(observation))
    return found.seed, found.time


def of(tree: Any, *at: int) -> Any:
    """One place of a tree of arrays."""
    return {name: of(part, *at) for name, part in tree.items()} if isinstance(tree, dict) else tree[at]


def rows_of(tree: Any) -> list[Any]:
    """A tree of arrays, in its rows."""
    if not isinstance(tree, dict):
        return list(tree)
    columns = {name: rows_of(part) for name, part in tree.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def follow(run: etude.Run, slow: SlowReplay, events: Any) -> None:
    """Hold what a run collects and learns against the slow program."""
    for entry in events:
        slow.collect(entry) if isinstance(entry, Collection) else slow.learn(entry)
    assert slow.due == 0, f"{slow.due} gradient steps were due at the end"
    assert run.learner.progress.gradient_steps == slow.gradient_steps


def trained(run: etude.Run, slow: SlowReplay, lengths: Sequence[int], total: int | None = None) -> None:
    """Train in pieces beside the slow program."""
    for length in lengths:
        slow.total = max(slow.total, slow.step + length, total or 0)
        follow(run, slow, watched_events(run.steps(length, total=total)))
