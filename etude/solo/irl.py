"""Rewards of a learned model. The inputs of the model are stored beside each step; the reward is computed whenever the
step is sampled, by the model as it is then. The environment's own reward is only logged.

An agent with such rewards writes

- `action(s)`, which returns `[inputs, a]`: the inputs of the reward model besides the transition [N, ...], and what
  the policy or the noise turns into actions;
- `reward_model(inputs, a, next_s, d)`, which returns the rewards [B] of B steps, each from its own row: the stored
  inputs, the action that was taken, and `next_s` and `d` as `__call__` gets them.

`__call__` gets these rewards as r, and returns the loss of the reward model beside those of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Space, zeros
from etude.protocols import Explorer
from etude.replay.ring import Extras
from etude.solo.conversion import REWARD_INPUTS, RewardModel
from etude.solo.engines import UserAgentEngine
from etude.solo.settings import Settings


class RewardSource(Protocol):
    """Computes the rewards that an agent learns from, and names the extras that this needs."""

    def explorer(self, explorer: Explorer) -> Explorer:
        """The explorer for what the agent's `action` returns."""

    def extras(self, engine: UserAgentEngine) -> Extras:
        """Shape and dtype of what is stored with every row, by name."""

    def model(self, engine: UserAgentEngine) -> RewardModel | None:
        """Computes the rewards of a batch; None where they are the environment's own."""


def reward_source(agent: Any, settings: Settings) -> RewardSource:
    """The rewards that the settings ask for; ConfigError where the agent has no `reward_model`."""
    if not settings.IRL:
        return EnvironmentRewards()
    if not callable(getattr(agent, "reward_model", None)):
        raise ConfigError(
            f"IRL=True takes rewards from a learned model, and {type(agent).__name__} has none. Write "
            "reward_model(self, inputs, a, next_s, d), which returns the rewards [B]; `inputs` is what action(s) "
            "returns in [inputs, a]."
        )
    return ModelRewards()


class EnvironmentRewards:
    """Rewards are those of the environment."""

    def explorer(self, explorer: Explorer) -> Explorer:
        """The explorer itself."""
        return explorer

    def extras(self, engine: UserAgentEngine) -> Extras:
        """None."""
        return {}

    def model(self, engine: UserAgentEngine) -> None:
        """There is none."""


class ModelRewards:
    """Rewards are those of the agent's `reward_model`."""

    def explorer(self, explorer: Explorer) -> Explorer:
        """An explorer that also passes on the inputs of the reward model."""
        return RewardInputsExplorer(explorer)

    def extras(self, engine: UserAgentEngine) -> Extras:
        """The inputs, as `action` returns them for an observation of zeros."""
        inputs, _ = split_output(engine.act(zeros(engine.spaces.observation, 1)), 1)
        return {REWARD_INPUTS: (inputs.shape[1:], inputs.dtype)}

    def model(self, engine: UserAgentEngine) -> Callable[..., np.ndarray]:
        """The engine's."""
        return engine.rewards


@dataclass
class RewardInputsExplorer:
    """Applies `inner` to the second part of `[inputs, a]`, and stores the first as an extra of the step."""

    inner: Explorer

    def __post_init__(self) -> None:
        self.state_size: int = self.inner.state_size

    def of(self, columns: np.ndarray) -> RewardInputsExplorer:
        """For the environments with these numbers."""
        return RewardInputsExplorer(self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """What the inner explorer draws."""
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """See `protocols.Explorer`; raises ConfigError where the output is no such pair."""
        inputs, policy = split_output(output, len(noise))
        choice = self.inner(policy, noise, step, state)
        return Choice(choice.action, {**choice.extras, REWARD_INPUTS: inputs})


def split_output(output: Any, n: int) -> tuple[np.ndarray, Any]:
    """What `action` returned for n observations, as (inputs [n, ...], what the policy gets); ConfigError for others."""
    pair = isinstance(output, list | tuple) and len(output) == 2
    if pair and isinstance(output[0], np.ndarray) and output[0].shape[:1] == (n,):
        return output[0], output[1]
    parts = list(output) if isinstance(output, list | tuple) else [output]
    got = ", ".join(f"an array {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__ for part in parts)
    raise ConfigError(
        f"With IRL=True, action(s) returns [inputs, a]: arrays with one row for each of {n} observations, the first of "
        f"what the reward is computed from, the second for the policy; it returned {got}."
    )
