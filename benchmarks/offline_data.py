"""Recorded data to learn from, by kind: a random policy, one of a training broken off early, and one of the same
training later on.

`python benchmarks/offline_data.py [ENVIRONMENT ...]` writes benchmarks/data/NAME-KIND.h5, 20,000 transitions or more.
CartPole-v1, Pendulum-v1 and Reacher-v5 (those without a name) get random, mediocre and good data; the trained policies
act with noise, so that the data holds more than one way to act. HalfCheetah-v5, Hopper-v5 and Walker2d-v5 get random,
medium and expert data of a SAC that samples its policy, after 300,000 and 1,000,000 steps, or with `--teacher ppo` of
PPO's preset. `--share 0.05` takes so much of the steps of a training, `--transitions 1000000` writes as many. The same
arguments make the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import etude
from etude import offline
from etude.explore import EpsilonGreedy, GaussianNoise, Sample
from etude.protocols import Explorer

DATA = Path(__file__).parent / "data"
TRANSITIONS = 20_000
SEED = 100


class Teacher(NamedTuple):
    """The algorithm that is trained, its config, and what is recorded of it: by kind, after how many steps, and with
    which explorer."""

    algorithm: str
    config: Any
    kinds: dict[str, tuple[int, Explorer]]


SMALL_SAC = etude.algorithms.SACConfig(network=etude.Mlp((64, 64)), learning_rate=1e-3, batch_size=128)
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ON_MUJOCO = {"medium": (300_000, Sample()), "expert": (1_000_000, Sample())}
TEACHERS = {
    "CartPole-v1": Teacher(
        "dqn",
        etude.algorithms.DQNConfig(
            network=etude.Mlp((64, 64)), learning_rate=1e-3, train_every=1, gradient_steps=1, n_step=1
        ),
        {"mediocre": (3_000, EpsilonGreedy(0.3)), "good": (44_500, EpsilonGreedy(0.02))},
    ),
    "Pendulum-v1": Teacher(
        "sac", SMALL_SAC, {"mediocre": (2_500, GaussianNoise(0.5)), "good": (10_000, GaussianNoise(0.1))}
    ),
    "Reacher-v5": Teacher(
        "sac", SMALL_SAC, {"mediocre": (3_000, GaussianNoise(0.5)), "good": (12_000, GaussianNoise(0.1))}
    ),
}
REFERENCES = {"HalfCheetah-v5": (-280.178953, 12135.0), "Hopper-v5": (-20.272305, 3234.3),
              "Walker2d-v5": (1.629008, 4592.3)}  # fmt: skip
"""D4RL's reference returns of a random and of an expert policy (d4rl/infos.py), on Gym's older environments."""


def path_of(environment: str, kind: str) -> Path:
    return DATA / f"{environment}-{kind}.h5"


def normalised(environment: str, mean: float) -> float | None:
    """A mean return on D4RL's scale, from 0 (random) to 100 (expert); None where D4RL has no references."""
    if environment not in REFERENCES:
        return None
    low, high = REFERENCES[environment]
    return 100 * (mean - low) / (high - low)


def teacher_of(environment: str, algorithm: str) -> Teacher:
    """What is recorded. algorithm: "sac" or "ppo", of the environments of MuJoCo."""
    if environment not in MUJOCO:
        return TEACHERS[environment]
    if algorithm == "ppo":
        preset = etude.presets.lookup("ppo", environment)
        assert preset is not None
        return Teacher("ppo", etude.algorithms.PPOConfig(**preset.config), ON_MUJOCO)
    return Teacher("sac", etude.algorithms.SACConfig(learning_starts=5_000), ON_MUJOCO)


def make(environment: str, transitions: int, share: float, algorithm: str) -> None:
    """All files of one environment."""
    algorithm, config, kinds = teacher_of(environment, algorithm)
    _save(environment, "random", transitions)
    with etude.Run(algorithm, environment, config=config, seed=SEED, execution=etude.Execution(device="cpu")) as run:
        for kind, (steps, explorer) in kinds.items():
            run.train(round(share * steps) - run.step)
            _save(environment, kind, transitions, run.actor(), explorer)


def _save(environment: str, kind: str, transitions: int, actor: Any = None, explorer: Explorer | None = None) -> None:
    episodes = 100
    found = etude.record(environment, episodes, actor, explorer, seed=SEED)
    while len(found) < transitions:
        episodes *= 2
        found = etude.record(environment, episodes, actor, explorer, seed=SEED)
    DATA.mkdir(exist_ok=True)
    offline.write(path_of(environment, kind), found)
    mean = found.returns.mean()
    score = normalised(environment, mean)
    shown = "" if score is None else f", normalised {score:.1f}"
    print(f"{environment} {kind}: {len(found)} transitions, mean return {mean:.1f}{shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=", ".join((*TEACHERS, *MUJOCO)))
    parser.add_argument("--teacher", choices=("sac", "ppo"), default="sac", help="on MuJoCo")
    parser.add_argument("--transitions", type=int, default=TRANSITIONS, help="of each file, at least")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of a training")
    options = parser.parse_args()
    for name in options.environments or TEACHERS:
        make(name, options.transitions, options.share, options.teacher)
