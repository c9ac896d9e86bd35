"""When a run collects how much, and when it learns how often: one cycle for each kind of config."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from etude.base.errors import ConfigError
from etude.config import (
    Config,
    EpisodesConfig,
    GradientsConfig,
    OfflineConfig,
    OffPolicyConfig,
    RolloutConfig,
)
from etude.protocols import Replay
from etude.replay.episode_batch import power_of_two
from etude.training.progress import Progress

SMALLEST_ROUND = 256  # rows that a batch of whole episodes is filled up to, at least


class UpdatesDue(NamedTuple):
    """A learning phase: so many gradient steps on batches of so many examples. 0: none is due."""

    gradient_steps: int
    size: int


class Cycle(Protocol):
    """Asked by the learner. N is the number of environments."""

    def wanted(self, step: int, stored: int) -> int | None:
        """Time steps of all environments until the next learning phase, at environment step `step` with so many rows
        in the replay; None: one whole episode of each."""

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        """What is to be learned now; counted in `progress` where it matters."""

    def learned(self, replay: Replay) -> None:
        """A learning phase is over."""


class OffPolicyCycle:
    """A phase after every `train_every` environment steps, once `learning_starts` steps are collected."""

    def __init__(self, config: OffPolicyConfig, count: int):
        self.config, self.count = config, count

    def wanted(self, step: int, stored: int) -> int:
        to_next_phase = self.config.train_every - step % self.config.train_every
        return -(-to_next_phase // self.count)

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        phases = progress.step // self.config.train_every
        due, progress.phases = max(0, phases - progress.phases), phases  # a resumed run may learn less often
        return UpdatesDue(
            due * self.config.gradient_steps if progress.step >= self.config.learning_starts else 0,
            self.config.batch_size,
        )

    def learned(self, replay: Replay) -> None:
        """What was learned from may be drawn again."""


class OnPolicyCycle:
    """A phase after `rollout` time steps of every environment, all of which it forgets. Examples are steps, or the
    whole rollouts of environments, or sequences that these are cut into."""

    def __init__(self, config: RolloutConfig, count: int):
        self.config, self.count = config, count
        self._length = config.example_length

    def wanted(self, step: int, stored: int) -> int:
        return self.config.rollout_length - stored // self.count % self.config.rollout_length

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        rows = self.config.rollout_length * self.count
        examples = rows // self._length
        size = max(1, min(self.config.minibatch_size or rows, rows) // self._length)
        return UpdatesDue(self.config.epochs * (examples // size) if len(replay) == rows else 0, size)

    def learned(self, replay: Replay) -> None:
        replay.clear()


class GradientsCycle:
    """A phase of one gradient step for every gradient that comes, which is after `rollout` steps of one environment."""

    def __init__(self, config: GradientsConfig):
        self.config = config

    def wanted(self, step: int, stored: int) -> int:
        return self.config.rollout_length - step % self.config.rollout_length

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        return UpdatesDue(len(replay), 1)

    def learned(self, replay: Replay) -> None:
        replay.clear()


class EpisodesCycle:
    """A phase of one gradient step after every round of whole episodes, all of which it forgets."""

    def wanted(self, step: int, stored: int) -> None:
        return None

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        rows = len(replay)
        return UpdatesDue(1 if rows else 0, power_of_two(rows, SMALLEST_ROUND))

    def learned(self, replay: Replay) -> None:
        replay.clear()


class OfflineCycle:
    """A phase of `gradient_steps` gradient steps whenever one is asked for: there is nothing to wait for."""

    def __init__(self, config: OfflineConfig):
        self.config = config

    def wanted(self, step: int, stored: int) -> int:
        return self.config.gradient_steps

    def due(self, progress: Progress, replay: Replay) -> UpdatesDue:
        return UpdatesDue(self.config.gradient_steps, self.config.batch_size)

    def learned(self, replay: Replay) -> None:
        """What was learned from may be drawn again."""


def cycle_for(config: Config, count: int) -> Cycle:
    """The cycle of a config, for `count` environments."""
    if isinstance(config, OffPolicyConfig):
        return OffPolicyCycle(config, count)
    if isinstance(config, GradientsConfig):
        return GradientsCycle(config)
    if isinstance(config, RolloutConfig):
        return OnPolicyCycle(config, count)
    if isinstance(config, EpisodesConfig):
        return EpisodesCycle()
    if isinstance(config, OfflineConfig):
        return OfflineCycle(config)
    raise ConfigError(
        f"{type(config).__name__} does not say when a run learns. Derive it from a config of etude, such as "
        "etude.OffPolicyConfig, etude.OnPolicyConfig, etude.EpisodesConfig or etude.OfflineConfig."
    )
