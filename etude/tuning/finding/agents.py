"""A learning-rate ramp on an agent of one's own."""

from __future__ import annotations

from typing import Any

from etude.base.errors import NumericalError
from etude.solo.agent import RL
from etude.solo.callbacks import AgentCallback
from etude.solo.engines.optimizers import LearningRates
from etude.solo.strategy import StrategyArguments
from etude.solo.temporary import temporary
from etude.tuning.finding.ramp import RampEnded, RampRecord


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
    with temporary(agent, agent._options(options), given) as training:
        optimizers = agent.optimizer if isinstance(agent.optimizer, list | tuple) else [agent.optimizer]
        callback = RampedMinibatches(LearningRates(agent.framework, optimizers), record)
        try:
            training.run(episodes, [callback])
        except RampEnded:
            pass
        except NumericalError as error:
            record.problem = str(error)
