"""A learning-rate range test (Smith 2017, arXiv:1506.01186) on an agent of one's own or a run: a rate that grows from
update to update, what training with it reported, and which rate these curves suggest.

The criterion is Smith's: the rate at which the smoothed curve improves fastest, before it breaks. Losses of
reinforcement learning move with their targets, so that changes count only above their noise.
"""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.data import Batch, Update
from etude.base.errors import ConfigError, NumericalError
from etude.base.events import Collected
from etude.engines.stacked import FromReturns
from etude.report.plots import RatePanel, draw_rates
from etude.run import Run
from etude.solo.agent import RL
from etude.solo.callbacks import AgentCallback, EndTraining
from etude.solo.engines import UserAgentEngine
from etude.solo.session import state_of
from etude.solo.training import temporary
from etude.training.learner import FromRollouts, GradientSource, Learner, add_to_means

Metric = Literal["reward", "loss"]

FEWEST = 8  # values of a curve that says anything
SHARE = 0.1  # of the values that one smoothed value is a mean over
BROKEN = 4.0  # times the noise, or the improvement before, that a loss has risen by where it diverges
IMPROVED = 6.0  # times the noise of a smoothed value that counts as an improvement
MARGIN = 10.0  # of a suggestion below the rate at which the loss diverges


class LRSuggestion(NamedTuple):
    """A learning rate, or None, and why. metric: of the curve that it was read from; None without one."""

    rate: float | None
    reason: str
    metric: Metric | None = None


def smoothed(values: np.ndarray) -> np.ndarray:
    """[n] running means over SHARE of the curve, centred, over fewer values at its ends."""
    half = max(1, round(len(values) * SHARE / 2))
    ends = np.clip(np.arange(len(values))[:, None] + [-half, half + 1], 0, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[ends[:, 1]] - sums[ends[:, 0]]) / (ends[:, 1] - ends[:, 0])


def _read_curve(values: np.ndarray) -> tuple[int | None, int | None]:
    """Where a curve [n], smaller is better, breaks: the first place from which on it is out of bounds, None where it
    stays; and where it improves fastest before, None where it does not improve. The first value that is not finite
    breaks it."""
    finite = np.isfinite(values)
    end = len(values) if finite.all() else int(np.argmin(finite))
    if end < FEWEST:
        return end if end < len(values) else None, None
    curve = smoothed(values[:end])
    noise = 1.4826 * float(np.median(np.abs(np.diff(values[:end])))) / np.sqrt(2)
    lowest = np.minimum.accumulate(curve)
    allowed = BROKEN * np.maximum(noise, curve[0] - lowest)
    out = curve - lowest > np.maximum(allowed, 1e-6 * np.abs(curve[0]))
    broken = int(np.argmax(out)) if out.any() else end if end < len(values) else None
    best = int(np.argmin(curve[:broken]))
    width = max(3, round(end * SHARE))
    if best < 2 or curve[: best + 1].max() - curve[best] <= IMPROVED * noise / np.sqrt(width):
        return broken, None
    return broken, int(np.argmin(np.gradient(curve[: best + 1])))


class Observed(NamedTuple):
    """What was observed at learning rates that grow: both [n], of updates or of episodes."""

    rates: np.ndarray
    values: np.ndarray


def suggest(losses: Observed, rewards: Observed) -> LRSuggestion:
    """From losses of updates and rewards of episodes. The rewards count where they improve, else the losses; a loss
    that diverges bounds both. A loss that is not finite is NaN."""
    (broken, steepest), (_, rising) = _read_curve(losses.values), _read_curve(-rewards.values)
    bound, where = None, ""
    if broken is not None:
        diverged = float(losses.rates[broken])
        bound, where = diverged / MARGIN, f"the loss diverges at {diverged:.2g}"
    metric: Metric
    if rising is not None:
        metric, rate = "reward", float(rewards.rates[rising])
    elif steepest is not None:
        metric, rate = "loss", float(losses.rates[steepest])
    elif bound is not None:
        return LRSuggestion(bound, f"{where}, and no curve improves before: a tenth of that.")
    elif (updates := len(losses.rates)) < FEWEST:
        few = f"only {updates} updates were made, and a curve needs {FEWEST}: give more episodes, or a larger N."
        return LRSuggestion(None, few)
    else:
        flat = "neither reward nor loss changes by more than its noise. Raise end_lr, or N, so that more episodes are "
        return LRSuggestion(None, f"{flat}played at each rate.")
    reason = f"the smoothed {metric} improves fastest at {rate:.2g}"
    if bound is not None and bound < rate:
        return LRSuggestion(bound, f"{reason}, but {where}: a tenth of that.", metric)
    return LRSuggestion(rate, f"{reason}{f'; {where}' if where else ''}.", metric)


class RampEnded(EndTraining):
    """The last update of a ramp was made; raised inside of training, whose effects are undone."""


@dataclass
class RampRecord:
    """A ramp of learning rates, and what training with it reported.

    start, end, updates: update i, from 0, learns with `start * (end / start) ** (i / updates)`; after all the rate is
    `end`. losses: of each update; the mean where there are several losses. rewards: returns of episodes; the mean of
    those that ended together. ended: how many updates were made before each of these. problem: why training failed; ""
    where it did not.
    """

    start: float
    end: float
    updates: int
    losses: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    problem: str = ""

    def __post_init__(self) -> None:
        checks.whole_number("N", self.updates, 2, ": updates of the ramp")
        numbers = all(isinstance(rate, int | float) and math.isfinite(rate) for rate in (self.start, self.end))
        if not numbers or not 0 < self.start < self.end:
            raise ConfigError(
                f"start_lr = {self.start!r}, end_lr = {self.end!r}; expected two numbers above 0, the lower one first, "
                "such as 1e-5 and 1."
            )

    def at(self, update: int) -> float:
        """The rate after so many updates."""
        factor = (self.end / self.start) ** (1 / self.updates)
        return self.end if update == self.updates else self.start * factor**update

    @property
    def rate(self) -> float:
        """The rate of the next update."""
        return self.at(len(self.losses))

    def add_loss(self, loss: float) -> None:
        """Record an update; RampEnded after the last one."""
        self.losses.append(loss)
        if len(self.losses) == self.updates:
            raise RampEnded

    def add_reward(self, reward: float, updates: int) -> None:
        """Record an episode that ended after so many updates."""
        self.rewards.append(reward)
        self.ended.append(updates)

    @property
    def rates(self) -> np.ndarray:
        """[n] of each update."""
        return np.array([self.at(i) for i in range(len(self.losses))])

    def rewards_of_updates(self, rewards: np.ndarray) -> np.ndarray:
        """[n], for each update the first of the rewards [E] of episodes that ended after it; for the last updates, that
        of the last episode. NaN where no episode ended."""
        if not len(rewards):
            return np.full(len(self.losses), np.nan)
        after = np.searchsorted(self.ended, np.arange(len(self.losses)), side="right")
        return rewards[np.minimum(after, len(rewards) - 1)]

    def rated_rewards(self) -> Observed:
        """The rewards of the episodes that ended after updates, at the rate of the last one before each."""
        pairs = [(n - 1, reward) for n, reward in zip(self.ended, self.rewards, strict=True) if n]
        rates = np.array([self.at(update) for update, _ in pairs])
        return Observed(rates, np.array([reward for _, reward in pairs], float))

    def normalised_rewards(self, window: int) -> np.ndarray:
        """[E]: each minus the mean of the last `window` up to it, over their standard deviation; 0 where that is 0."""
        found = np.zeros(len(self.rewards))
        for i, reward in enumerate(self.rewards):
            recent = np.array(self.rewards[max(0, i + 1 - window) : i + 1])
            spread = recent.std()
            found[i] = (reward - recent.mean()) / spread if spread > 0 else 0.0
        return found


RATE = "learning_rate"


class _RampedGradients:
    """Takes the gradient steps of another source one by one, each with the learning rate of a ramp. See
    `GradientSource`."""

    def __init__(self, source: GradientSource, record: RampRecord):
        self._source, self._record = source, record

    def __call__(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        """RampEnded after the last update of the ramp."""
        losses: dict[str, float] = {}
        metrics: dict[str, float] = {}
        found, total = [], batches.weight.shape[0]
        for i in range(total):
            rated = {**hyper, RATE: self._record.rate}
            update = self._source(batches.map(lambda leaf, i=i: leaf[i : i + 1]), rated, gradient_steps + i)
            self._record.add_loss(statistics.fmean(update.losses.values()))
            add_to_means(losses, update.losses, 1, total)
            add_to_means(metrics, update.metrics, 1, total)
            found.append(update)
        errors, ratios = (_joined([getattr(one, name) for one in found]) for name in ("td_error", "ratio"))
        return Update(losses, metrics, errors, total, ratios)


def follow_ramp_with_run(run: Run, record: RampRecord, episodes: int | None, steps: int) -> None:
    """Train with the rates of a ramp, until it ends, so many episodes have ended, or so many environment steps were
    taken; and undo it. Fills the record; what an environment raises is raised here."""
    learner: Any = run.learner
    if not isinstance(learner, Learner) or isinstance(learner.gradients, FromRollouts | FromReturns):
        raise ConfigError(
            f"LRFinder needs updates by the losses of one agent, and {run.algorithm} has none here: its policies learn "
            "separately, or its gradients do not come from losses on batches. Tune its learning rate with a study: "
            "etude.Study."
        )
    if RATE not in learner.engine.layout.hyper:
        raise ConfigError(
            f"The config of {run.algorithm} has no learning_rate that is a number. Add the field learning_rate: float "
            "to it."
        )
    state, directory, source = copy.deepcopy(run.state()), run.directory, learner.gradients
    run.directory, learner.gradients = None, _RampedGradients(source, record)
    played, before = 0, 0
    try:
        for event in run.steps(steps):
            if not isinstance(event, Collected):
                continue
            if event.episodes:
                record.add_reward(statistics.fmean(end.total for end in event.episodes), before)
            played, before = played + len(event.episodes), len(record.losses)
            if episodes is not None and played >= episodes:
                break
    except RampEnded:
        pass
    except NumericalError as error:
        record.problem = str(error)
    finally:
        learner.gradients, run.directory = source, directory
        run.restore(state)


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def steps_of_run(train_loss: Any, pool_network: bool, strategy: Any, options: dict[str, Any], default: int) -> int:
    """The environment steps that a finder of runs was given; ConfigError for arguments that are for agents of one's
    own."""
    given = {"train_loss": train_loss, "strategy": strategy, "pool_network": None if pool_network else False, **options}
    refused = [name for name, value in given.items() if value is not None and name != "steps"]
    if refused:
        raise ConfigError(
            f"find of a run takes no {', '.join(refused)}: that is for agents of one's own. A run has its own workers "
            "and devices; give steps, or episodes."
        )
    steps = options.get("steps", default)
    checks.whole_number("steps", steps, of=": environment steps")
    return steps


class LearningRates:
    """All learning rates of an agent's optimizers: the first one as it is set, the others in the same ratio to it."""

    def __init__(self, engine: UserAgentEngine):
        self._rates = engine.optimizer_settings("learning_rate", of_all=True)
        self.first: float = self._rates[0].read()
        if self.first <= 0:
            raise ConfigError(f"The first learning rate of the optimizers is {self.first}; expected a number above 0.")
        self._ratios = [one.read() / self.first for one in self._rates]

    def set(self, rate: float) -> None:
        """Learn with this rate from the next update on."""
        for one, ratio in zip(self._rates, self._ratios, strict=True):
            one.write(rate * ratio)


class _RampedMinibatches(AgentCallback):
    """Sets the learning rate before every minibatch, and records losses and rewards."""

    def __init__(self, rates: LearningRates, record: RampRecord):
        self._rates, self._record, self._before = rates, record, 0

    def on_batch_begin(self, batch: int, logs: dict[str, float]) -> None:
        self._rates.set(self._record.rate)

    def on_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self._record.add_loss(logs["loss"])

    def on_episode_end(self, episode: int, logs: dict[str, float]) -> None:
        self._record.add_reward(logs["reward"], self._before)
        self._before = len(self._record.losses)


STEPS = 100_000  # environment steps of a run at most


class LRFinder:
    """Trains with a learning rate that grows from update to update, reports reward and loss at each rate, and suggests
    one. The agent is left as it was, bit for bit: weights, optimizer, replay, generators and counters.

    agent: an agent of one's own (`etude.RL`, `etude.RL_pytorch`) with its `optimizer` set, or an `etude.Run`.

        finder = LRFinder(agent)
        print(finder.find(N=200, start_lr=1e-5, end_lr=1.0, episodes=100))
        finder.plot_reward()

    Of several learning rates of an agent the first one is the ramp's, and the others keep their ratio to it; of a run
    it is `learning_rate` of the config.
    """

    def __init__(self, agent: RL | Run):
        if not isinstance(agent, RL | Run):
            raise ConfigError(
                f"LRFinder got a {type(agent).__name__}; expected an agent of your own, derived from etude.RL or "
                "etude.RL_pytorch, or an etude.Run."
            )
        self.agent = agent
        self._record: RampRecord | None = None
        self._window = 0
        self.suggestion: LRSuggestion | None = None

    def find(
        self,
        train_loss: Any = None,
        pool_network: bool = True,
        strategy: Any = None,
        N: int = 100,
        window_size: int = 7,
        start_lr: float = 1e-5,
        end_lr: float = 1.0,
        episodes: int | None = None,
        **options: Any,
    ) -> LRSuggestion:
        """Train for N updates, of which update i learns with `start_lr * (end_lr / start_lr) ** (i / N)`.

        train_loss: a keras.metrics.Mean that the mean loss is added to, or None. pool_network, strategy, other options:
            those of `RL.train`, and of `RL.distributed_training` where there is a strategy. For a run: `steps` alone,
            the environment steps that it takes at most, 100,000 by default.
        window_size: episodes whose mean and standard deviation normalise a reward, the last ones up to it.
        episodes: end after so many also where the ramp is not at its end; None: the ramp alone ends it. Agents need it
            that learn nothing from their episodes.

        A loss that is not finite ends the ramp. ConfigError for arguments that do not fit; errors of the agent and its
        environment are raised, after the agent is restored.
        """
        record = RampRecord(start_lr, end_lr, N)
        checks.whole_number("window_size", window_size, 2, ": episodes")
        checks.whole_number("episodes", episodes, none=True)
        if isinstance(self.agent, Run):
            steps = steps_of_run(train_loss, pool_network, strategy, options, STEPS)
            follow_ramp_with_run(self.agent, record, episodes, steps)
        else:
            with temporary(self.agent, {"pool_network": pool_network, **options}, strategy) as train:
                session = state_of(self.agent).session
                assert session is not None
                callback = _RampedMinibatches(LearningRates(session.learner.engine), record)
                try:
                    train(episodes, [callback])
                except RampEnded:
                    pass
                except NumericalError as error:
                    record.problem = str(error)
        self._record, self._window = record, window_size
        if train_loss is not None and record.losses:
            train_loss.update_state(float(np.mean(record.losses)))
        self.suggestion = self._suggested()
        return self.suggestion

    @property
    def rates(self) -> np.ndarray:
        """[n], the learning rate of each update."""
        return self._found().rates

    @property
    def losses(self) -> np.ndarray:
        """[n], the loss of each update; the mean where there are several losses."""
        return np.array(self._found().losses)

    @property
    def rewards(self) -> np.ndarray:
        """[E], the reward of each episode; the mean of those that ended together."""
        return np.array(self._found().rewards)

    @property
    def reward_curve(self) -> np.ndarray:
        """[n], for each update the normalised reward of the first episode that ended after it (for the last updates, of
        the last episode): minus the mean of the last `window_size` rewards, over their standard deviation."""
        record = self._found()
        return record.rewards_of_updates(record.normalised_rewards(self._window))

    def reward_change(self, sma: int = 1) -> np.ndarray:
        """[n], the mean change of `reward_curve` per update over the last `sma` updates; 0 for the first ones."""
        checks.whole_number("sma", sma, of=": updates")
        curve = self.reward_curve
        change = np.zeros(len(curve))
        change[sma:] = (curve[sma:] - curve[:-sma]) / sma
        return change

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw what the suggestion was read from, and the suggested rate: the loss of each update, and the return of
        each episode where enough have ended, both with their smoothed curves, up to where they break. Shown, or written
        to `path`. Returns the matplotlib figure."""
        record = self._found()
        loss, reward = Observed(record.rates, self.losses), record.rated_rewards()
        panels = [_panel("loss", loss, _read_curve(loss.values)[0])]
        if len(reward.values) >= FEWEST:
            panels.append(_panel("return of an episode", reward, _read_curve(-reward.values)[0]))
        return self._drawn(panels, path)

    def plot_reward(self, n_skip_beginning: int = 10, n_skip_end: int = 5, path: str | Path | None = None) -> Any:
        """Draw the normalised reward over the learning rate, without so many updates at the beginning and the end, and
        the suggested rate. Shown, or written to `path`. Returns the matplotlib figure."""
        return self._drawn([self._panel(self.reward_curve, "normalised reward", n_skip_beginning, n_skip_end)], path)

    def plot_loss(self, n_skip_beginning: int = 10, n_skip_end: int = 5, path: str | Path | None = None) -> Any:
        """Draw the loss in the same way."""
        return self._drawn([self._panel(self.losses, "loss", n_skip_beginning, n_skip_end)], path)

    def plot_reward_change(
        self,
        sma: int = 1,
        n_skip_beginning: int = 10,
        n_skip_end: int = 5,
        y_lim: tuple[float, float] | None = None,
        path: str | Path | None = None,
    ) -> Any:
        """Draw `reward_change(sma)` in the same way. y_lim: ends of the vertical axis."""
        label = f"change of reward per update, over {sma}"
        panel = self._panel(self.reward_change(sma), label, n_skip_beginning, n_skip_end)
        return self._drawn([panel._replace(y_lim=y_lim)], path)

    def _panel(self, values: np.ndarray, label: str, first: int, last: int) -> RatePanel:
        """Values of updates, without so many of the first and the last ones."""
        n = len(values)
        if min(first, last) < 0 or first + last >= n:
            raise ConfigError(
                f"n_skip_beginning = {first}, n_skip_end = {last}; expected whole numbers from 0 that leave some of "
                f"the {n} updates."
            )
        kept = slice(first, n - last)
        if np.isnan(values[kept]).all():
            raise ConfigError(f"There is no {label} to draw: no episode ended. Give more episodes, or a larger N.")
        return RatePanel(label, self.rates[kept], values[kept])

    def _drawn(self, panels: list[RatePanel], path: str | Path | None) -> Any:
        suggested = None if self.suggestion is None else self.suggestion.rate
        agent = self.agent
        title = f"{agent.algorithm} on {agent.environment}" if isinstance(agent, Run) else type(agent).__name__
        return draw_rates(panels, suggested, path, f"Learning rates of {title}")

    def _found(self) -> RampRecord:
        if self._record is None:
            raise ConfigError("Nothing was found yet. Call find first.")
        return self._record

    def _suggested(self) -> LRSuggestion:
        record = self._found()
        losses = Observed(record.rates, np.array(record.losses))
        if record.problem:
            losses = Observed(np.append(losses.rates, record.rate), np.append(losses.values, np.nan))
        found = suggest(losses, record.rated_rewards())
        if len(record.losses) < record.updates and not record.problem:
            short = f" The ramp ended at {record.rate:.2g}, after {len(record.losses)} of {record.updates} updates."
            return found._replace(reason=found.reason + short)
        return found


def _panel(label: str, seen: Observed, broken: int | None) -> RatePanel:
    """Values and their smoothed curve, whose range up to where it breaks is that of the axis."""
    end = int(np.argmin(np.append(np.isfinite(seen.values), False)))
    if not end:
        raise ConfigError(
            f"There is no {label} to draw: no update had a finite one. Give more episodes, or a larger N."
        )
    curve = smoothed(seen.values[:end])
    low, high = (float(f(curve[: broken or end])) for f in (np.min, np.max))
    margin = (high - low or 1.0) / 3
    return RatePanel(label, seen.rates, seen.values, curve, (low - margin, high + margin))
