"""Agents whose weights are clocks: the greedy action tells how many gradient steps its weights had seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st
from scripted_worlds import SCALE
from watched import Watched, in_numpy

import etude
from etude import ops

TICKS = gym.spaces.Discrete(1500)  # the actions of agents that tell their gradient steps


@dataclass(frozen=True)
class ClockConfig(etude.algorithms.OffPolicyConfig):
    """Hyperparameters of `Clock`."""

    learning_rate: float | etude.Linear = 1.0
    optimizer: etude.optimizers.SGD = etude.optimizers.SGD()
    epsilon: float | etude.Linear = 0.0
    target_update_every: int = 3


class _Clock(etude.Agent):
    """The number `clock` grows by the learning rate with every gradient step. Its copy follows as target networks do.

    The error of a transition tells its time, and that of its newest gradient step.
    """

    acts_by = "values"
    actions = (gym.spaces.Discrete,)

    def build(self, make: Any, spaces: Any) -> None:
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.clock = make.free(0.0)
        self.clock_target = etude.target(self.clock, every="target_update_every")

    def act(self, observation: Any) -> Any:
        some = observation["observation"] if isinstance(observation, dict) else observation
        return 0.0 * some[:, :1] - ops.abs(self.clock() - np.arange(TICKS.n, dtype=np.float32))

    def loss(self, batch: Any, noise: dict[str, Any]) -> etude.Losses:
        return etude.Losses(clock=etude.Loss(-self.clock(), td_error=self.td_error(batch)))

    def td_error(self, batch: Any) -> Any:
        """[B], of the time of each transition, and of the present."""
        some = batch.observation["observation"] if isinstance(batch.observation, dict) else batch.observation
        some = some[:, 0] if len(some.shape) == 3 else some  # of sequences
        return ops.stop_gradient((some[..., 2] / SCALE + 1.0) * (1.0 + 0.125 * self.clock()))


class Clock(Watched, _Clock):
    """Learns from transitions."""

    def more(self, batch: Any) -> dict[str, Any]:
        return {
            "clock": float(self.clock()),
            "copied": float(self.clock_target()),
            "td_error": in_numpy(self.td_error(batch)),
            "normalised": in_numpy(self.normaliser(batch.observation)),
        }


@dataclass(frozen=True)
class SequenceClockConfig(etude.algorithms.SequenceConfig, ClockConfig):
    """Hyperparameters of `SequenceClock`."""

    batch_size: int = 4
    sequence_length: int = 3
    burn_in: int = 1


class SequenceClock(Clock):
    """Learns from sequences; its state counts the steps of an episode."""

    learns_from = "sequences"

    def build(self, make: Any, spaces: Any) -> None:
        super().build(make, spaces)
        self.state_size = 1

    def act(self, observation: Any, state: Any) -> tuple[Any, Any]:
        return super().act(observation), state + 1.0


class _NoisyClock(_Clock):
    """The same with noise in a layer, which alone decides the action: one for each draw of it."""

    def build(self, make: Any, spaces: Any) -> None:
        super().build(make, spaces)
        self.q = make.values(etude.Mlp((), noisy=5.0), spaces.observation, int(spaces.action.n))
        self.batch_noise = {"q": (self.q.noise_size,)}

    def act(self, observation: Any) -> Any:
        return self.q(0.0 * observation)

    def loss(self, batch: Any, noise: dict[str, Any]) -> etude.Losses:
        still = etude.Loss(0.0 * ops.sum(self.q.perturbed(noise["q"])(0.0 * batch.observation)))
        return etude.Losses(**super().loss(batch, noise), q=still)


class NoisyClock(Watched, _NoisyClock):
    """Learns from transitions, and explores by the noise of its layer."""

    more = Clock.more


# What hypothesis draws of the fields of `ClockConfig`. Its first example is the simplest one, with what comes first.
FIELDS = {
    "buffer_size": st.integers(3, 40).map(lambda size: 43 - size),
    "batch_size": st.integers(1, 6).map(lambda size: 7 - size),
    "learning_starts": st.integers(0, 25),
    "train_every": st.integers(1, 9),
    "gradient_steps": st.integers(1, 3),
    "n_step": st.sampled_from([3, 1, 2, 4]),
    "priority_exponent": st.sampled_from([0.6, 0.0, 1.0]),
    "importance_exponent": st.sampled_from([etude.Linear(0.4, 1.0), 0.5]),
    "gamma": st.sampled_from([0.9, 1.0]),
    "target_update_every": st.integers(1, 7),
    "learning_rate": st.sampled_from([1.0, etude.Linear(1.0, 0.25, 0.5)]),
    "clip_reward": st.booleans(),
    "normalize_reward": st.sampled_from([True, False]),
    "normalize_observation": st.sampled_from([True, False]),
}
