"""Recorded data to learn from: a random policy, a mediocre one and a good one, for CartPole-v1 and Pendulum-v1.

`python benchmarks/offline_data.py [ENVIRONMENT]` writes benchmarks/data/NAME-KIND.h5, 20,000 transitions or more. The
mediocre policy is that of a training broken off early, the good one that of the same training later on; both act with
noise, so that the data holds more than one way to act. The same seed makes the same files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import etude
from etude import offline
from etude.explore import EpsilonGreedy, GaussianNoise

DATA = Path(__file__).parent / "data"
TRANSITIONS = 20_000
SEED = 100
TEACHERS = {
    "CartPole-v1": (
        "dqn",
        etude.algorithms.DQNConfig(
            network=etude.Mlp((64, 64)), learning_rate=1e-3, train_every=1, gradient_steps=1, n_step=1
        ),
        {"mediocre": 3_000, "good": 44_500},
    ),
    "Pendulum-v1": (
        "sac",
        etude.algorithms.SACConfig(network=etude.Mlp((64, 64)), learning_rate=1e-3, batch_size=128),
        {"mediocre": 2_500, "good": 10_000},
    ),
}  # the algorithm, its config, and after how many steps it is played
EXPLORERS = {"CartPole-v1": {"mediocre": EpsilonGreedy(0.3), "good": EpsilonGreedy(0.02)},
             "Pendulum-v1": {"mediocre": GaussianNoise(0.5), "good": GaussianNoise(0.1)}}  # fmt: skip


def path_of(environment: str, kind: str) -> Path:
    return DATA / f"{environment}-{kind}.h5"


def make(environment: str) -> None:
    """The three files of one environment."""
    algorithm, config, kinds = TEACHERS[environment]
    _save(environment, "random")
    with etude.Run(algorithm, environment, config=config, seed=SEED, device="cpu") as run:
        for kind, steps in kinds.items():
            run.train(steps - run.step)
            _save(environment, kind, run.actor(), EXPLORERS[environment][kind])


def _save(environment: str, kind: str, actor=None, explorer=None) -> None:
    episodes = 100
    found = etude.record(environment, episodes, actor, explorer, seed=SEED)
    while len(found) < TRANSITIONS:
        episodes *= 2
        found = etude.record(environment, episodes, actor, explorer, seed=SEED)
    DATA.mkdir(exist_ok=True)
    offline.write(path_of(environment, kind), found)
    print(f"{environment} {kind}: {len(found)} transitions, mean return {found.returns.mean():.1f}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or TEACHERS:
        make(name)
