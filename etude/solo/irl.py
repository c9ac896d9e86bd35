"""Rewards of a learned model. What a step's reward is computed from is stored beside the step; the reward itself is
computed whenever the step is drawn, by the model as it is then. The environment's own reward is only reported.

An agent with such rewards writes

- `action(s)`, which returns `[inputs, a]`: what the reward is computed from besides the transition [N, ...], and what
  the policy or the noise turns into actions;
- `reward_model(inputs, a, next_s, d)`, which returns the rewards [B] of B steps, each from its own row: the stored
  inputs, the action that was really taken, and `next_s` and `d` as `__call__` gets them.

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
from etude.engines.solo import SoloEngine
from etude.protocols import Explorer
from etude.replay.sizes import Extras
from etude.solo.presentation import REWARD_INPUTS, RewardModel
from etude.solo.settings import Settings


class Rewards(Protocol):
    """Where the rewards that an agent learns from come from, and what has to be stored for them."""

    def exploring(self, explorer: Explorer) -> Explorer:
        """The explorer for what the agent's `action` returns."""

    def stored(self, engine: SoloEngine) -> Extras:
        """Shape and dtype of what is stored with every row, by name."""

    def model(self, engine: SoloEngine) -> RewardModel | None:
        """What computes the rewards of a batch; None where they are the environment's own."""


def rewards_of(agent: Any, settings: Settings) -> Rewards:
    """The rewards that the settings ask for; ConfigError where the agent has no `reward_model`."""
    if not settings.IRL:
        return OfEnvironment()
    if not callable(getattr(agent, "reward_model", None)):
        raise ConfigError(
            f"IRL=True takes rewards from a learned model, and {type(agent).__name__} has none. Write "
            "reward_model(self, inputs, a, next_s, d), which returns the rewards [B]; `inputs` is what action(s) "
            "returns in [inputs, a]."
        )
    return OfModel()


class OfEnvironment:
    """Rewards are those of the environment."""

    def exploring(self, explorer: Explorer) -> Explorer:
        """The explorer itself."""
        return explorer

    def stored(self, engine: SoloEngine) -> Extras:
        """Nothing more."""
        return {}

    def model(self, engine: SoloEngine) -> None:
        """There is none."""


class OfModel:
    """Rewards are those of the agent's `reward_model`."""

    def exploring(self, explorer: Explorer) -> Explorer:
        """An explorer that also hands on what the reward is computed from."""
        return WithInputs(explorer)

    def stored(self, engine: SoloEngine) -> Extras:
        """The inputs, as `action` returns them for an observation of zeros."""
        inputs, _ = parted(engine.act(zeros(engine.spaces.observation, 1)), 1)
        return {REWARD_INPUTS: (inputs.shape[1:], inputs.dtype)}

    def model(self, engine: SoloEngine) -> Callable[..., np.ndarray]:
        """The engine's."""
        return engine.rewards


@dataclass
class WithInputs:
    """Explores as `explorer` does, given the second part of `[inputs, a]`; the first goes beside the step, an extra."""

    explorer: Explorer

    def __post_init__(self) -> None:
        self.memory = self.explorer.memory

    def of(self, columns: np.ndarray) -> WithInputs:
        """For the environments with these numbers."""
        return WithInputs(self.explorer.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """What the explorer draws."""
        return self.explorer.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, memory: np.ndarray) -> Choice:
        """See `protocols.Explorer`; raises ConfigError for what is no such pair."""
        inputs, policy = parted(output, len(noise))
        choice = self.explorer(policy, noise, step, memory)
        return Choice(choice.action, {**choice.extras, REWARD_INPUTS: inputs})


def parted(output: Any, n: int) -> tuple[np.ndarray, Any]:
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
