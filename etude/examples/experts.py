"""Episodes of experts, to imitate: played by any policy, and kept in files.

episodes = play(balance, "CartPole-v1", 5)
write("experts.etude", episodes)
agent = GAIL(4, 64, 2, 0.2, 0.01, Expert.of(read("experts.etude")))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude import checkpoint
from etude.base import trees
from etude.base.data import Episode
from etude.base.errors import CheckpointError, ConfigError
from etude.base.seeding import episode_seed
from etude.base.trees import Tree
from etude.solo.environments import UserEnvironments

Policy = Callable[[Tree], Any]  # one observation [...] to one action, in the environment's own units


def play(policy: Policy, env: Any, episodes: int, seed: int = 0) -> list[Episode]:
    """Play so many whole episodes. env: as agents hold it in `env`. seed: what each episode's seed comes from."""
    if episodes < 1:
        raise ConfigError(f"play: episodes = {episodes}; expected at least 1.")
    environment = UserEnvironments.of(env, seed).single()
    try:
        return [_episode(policy, environment, episode_seed(seed, 0, number)) for number in range(episodes)]
    finally:
        environment.close()


def _episode(policy: Policy, environment: Any, seed: int) -> Episode:
    observations, actions, rewards = [environment.reset(seed=seed)], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        actions.append(np.asarray(policy(observations[-1])))
        observation, reward, terminated, truncated, _ = environment.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    return Episode(trees.stack(observations), np.stack(actions), np.array(rewards, np.float32), terminated, truncated)


def write(path: str | Path, episodes: Sequence[Episode]) -> None:
    """Write episodes to one file, in etude's checkpoint format."""
    fields = ("observation", "action", "reward", "terminated", "truncated")
    checkpoint.write(Path(path), {"episodes": [{name: getattr(one, name) for name in fields} for one in episodes]})


def read(path: str | Path) -> list[Episode]:
    """What `write` wrote. Nothing in the file is executed; CheckpointError where it is damaged or is no such file."""
    held = checkpoint.read(Path(path), expect={"episodes"})["episodes"]
    try:
        episodes = [Episode(**one) for one in held]
        for one in episodes:
            lengths = {len(one.action), len(one.reward), *(len(leaf) - 1 for leaf in trees.leaves(one.observation))}
            if len(lengths) != 1:
                raise ValueError(f"an episode has parts of {sorted(lengths)} steps")
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} holds no episodes of experts: {error}. Write them with etude.examples.experts.write."
        ) from error
    return episodes


@dataclass(frozen=True, eq=False)
class Expert:
    """The M steps of an expert, for losses to draw from. An agent that holds it compiles its arrays as constants.

    s, next_s: observations [M, ...]. a: actions [M, ...]. d: [M] float32, 1 where the episode terminated. These are the
    arguments that `__call__` of an agent gets, but for the reward.
    """

    s: np.ndarray
    a: np.ndarray
    next_s: np.ndarray
    d: np.ndarray

    def __len__(self) -> int:
        return len(self.d)

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Expert:
        """All steps of these episodes, whose observations are arrays."""
        if not episodes or not all(isinstance(one.observation, np.ndarray) for one in episodes):
            raise ConfigError(
                "Expert.of takes at least one episode, with observations that are arrays; flatten Dict and Tuple "
                "observations with a gymnasium.ObservationWrapper."
            )
        ended = [np.arange(1, len(one.action) + 1) == len(one.action) * one.terminated for one in episodes]
        return cls(
            np.concatenate([one.observation[:-1] for one in episodes]),
            np.concatenate([one.action for one in episodes]),
            np.concatenate([one.observation[1:] for one in episodes]),
            np.concatenate(ended).astype(np.float32),
        )


def balance(observation: np.ndarray) -> int:
    """An expert of CartPole, written by hand: push to where the pole falls, and a little back to the middle. It keeps
    the pole up for all of the 500 steps."""
    x, speed, angle, turning = observation
    return int(angle + 0.3 * turning + 0.01 * x + 0.03 * speed > 0)
