"""A learning-rate range test (Smith 2017, arXiv:1506.01186) on an agent of one's own or a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError, NumericalError
from etude.report.plots import RatePanel, draw_rates
from etude.run import Run
from etude.solo.agent import RL
from etude.solo.callbacks import AgentCallback
from etude.solo.settings import StrategyArguments
from etude.solo.training import LearningRates, temporary
from etude.tuning.finding.ramp import (
    FEWEST,
    LRSuggestion,
    Observed,
    Ramp,
    RampEnded,
    RampRecord,
    read_curve,
    smoothed,
    suggest,
)
from etude.tuning.finding.runs import follow_ramp_with_run, steps_of_run


class RampedMinibatches(AgentCallback):
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


def follow_ramp_with_agent(
    agent: RL, record: RampRecord, episodes: int | None, strategy: Any, options: dict[str, Any]
) -> None:
    """Train with the rates of a ramp, until it ends or so many episodes are played, and undo it. Fills the record; what
    an agent or its environment raises is raised here, but for losses that are not finite."""
    given = None if strategy is None else StrategyArguments(strategy)
    with temporary(agent, agent._options(options), given) as train:
        optimizers = agent.optimizer if isinstance(agent.optimizer, list | tuple) else [agent.optimizer]
        callback = RampedMinibatches(LearningRates(agent.framework, optimizers), record)
        try:
            train(episodes, [callback])
        except RampEnded:
            pass
        except NumericalError as error:
            record.problem = str(error)


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
        record = RampRecord(Ramp(start_lr, end_lr, N))
        if type(window_size) is not int or window_size < 2:
            raise ConfigError(f"window_size = {window_size!r}; expected a whole number of at least 2: episodes.")
        if episodes is not None and (type(episodes) is not int or episodes < 1):
            raise ConfigError(f"episodes = {episodes!r}; expected a whole number of at least 1, or None.")
        if isinstance(self.agent, Run):
            steps = steps_of_run(train_loss, pool_network, strategy, options, STEPS)
            follow_ramp_with_run(self.agent, record, episodes, steps)
        else:
            follow_ramp_with_agent(self.agent, record, episodes, strategy, {"pool_network": pool_network, **options})
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
        if type(sma) is not int or sma < 1:
            raise ConfigError(f"sma = {sma!r}; expected a whole number of at least 1: updates.")
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
        panels = [_panel("loss", loss, read_curve(loss.values).broken)]
        if len(reward.values) >= FEWEST:
            panels.append(_panel("return of an episode", reward, read_curve(-reward.values).broken))
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
        if len(record.losses) < record.ramp.updates and not record.problem:
            short = (
                f" The ramp ended at {record.rate:.2g}, after {len(record.losses)} of {record.ramp.updates} updates."
            )
            return found._replace(reason=found.reason + short)
        return found


def _panel(label: str, seen: Observed, broken: int | None) -> RatePanel:
    """Values and their smoothed curve, whose range up to where it breaks is that of the axis."""
    end = int(np.argmin(np.append(np.isfinite(seen.values), False)))
    curve = smoothed(seen.values[:end])
    low, high = (float(f(curve[: broken or end])) for f in (np.min, np.max))
    margin = (high - low or 1.0) / 3
    return RatePanel(label, seen.rates, seen.values, curve, (low - margin, high + margin))
