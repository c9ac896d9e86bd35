"""Presets of DQN and what follows it: C51, QR-DQN, Rainbow, Ape-X DQN, R2D2.

The zoo counts the interval between two copies into the target network in environment steps, etude in gradient steps.
The zoo copies only between learning phases, so an interval shorter than a phase means one copy a phase.
The zoo's DQN has no double estimation, and acts at random until `learning_starts`; etude follows `epsilon` from the
first step.
The zoo keeps the learning rate constant and publishes the best agent of a run; here it falls to 0 for the sake of the
last agent. At a constant rate one CartPole seed in three ends far below 500, with Stable-Baselines3 as with etude; with
a falling rate still one or two in five. Ten steps to a target and double estimation, tried on other seeds than those of
benchmarks/learning.json, keep what is learned.
Run Ape-X with workers, which collect while the learner learns: `--workers 2 --overlap`.
"""

from __future__ import annotations

from typing import Any

from etude.base.schedules import Linear
from etude.networks import Conv, Mlp, Recurrent
from etude.presets.preset import ATARI, ATARI_SOURCE, WITHOUT_VELOCITIES, ZOO, Preset

_CART_POLE: dict[str, Any] = {
    "network": Mlp((256, 256)),
    "learning_rate": Linear(2.3e-3, 0.0),
    "gamma": 0.99,
    "n_step": 10,
    "target_update_every": 128,
    "epsilon": Linear(1.0, 0.04, 0.16),
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "train_every": 256,
    "gradient_steps": 128,
}
_FOUR_FOR_FOUR: dict[str, Any] = {  # gradient steps and environment steps
    "network": Mlp((256, 256)),
    "learning_rate": Linear(6.3e-4, 0.0),
    "gamma": 0.99,
    "n_step": 1,
    "target_update_every": 250,
    "epsilon": Linear(1.0, 0.1, 0.12),
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "train_every": 4,
    "gradient_steps": 4,
}
_ALL_STEPS = ". gradient_steps -1 is 4 for 4 environment steps"
_AS_DQN = ZOO.format("dqn", "CartPole-v1") + ", as in etude's preset of DQN; the zoo has no {}. Returns lie between 0 "
_AS_DQN += "and 1 / (1 - gamma)."
_OF_RETURNS: dict[str, Any] = {"v_min": 0.0, "v_max": 100.0}

DQN = {
    "CartPole-v1": Preset(
        config=_CART_POLE | {"double": True},
        steps=50_000,
        environments=1,
        source=ZOO.format("dqn", "CartPole-v1") + ". A copy every 128 gradient steps, one learning phase (zoo: every "
        "10 environment steps, of which only the last before a phase counts). Double estimation over 10 steps.",
    ),
    "MountainCar-v0": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": Linear(4e-3, 0.0),
            "gamma": 0.98,
            "double": True,
            "n_step": 10,
            "target_update_every": 300,
            "epsilon": Linear(1.0, 0.07, 0.2),
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 1_000,
            "train_every": 16,
            "gradient_steps": 8,
        },
        steps=120_000,
        environments=1,
        source=ZOO.format("dqn", "MountainCar-v0")
        + ". A copy every 300 gradient steps (zoo: every 600 environment steps). Double estimation over 10 steps and a "
        "replay of 50,000 (zoo: 10,000), tried on seeds 101, 102, 103, 105 and 106; with the zoo's, one seed in five "
        "never found the goal.",
    ),
    **{
        name: Preset(
            config=_FOUR_FOR_FOUR | {"double": False},
            steps=100_000,
            environments=1,
            source=ZOO.format("dqn", name) + _ALL_STEPS + ".",
        )
        for name in ("LunarLander-v3", "Acrobot-v1")
    },
    ATARI: Preset(
        config={
            "network": Conv(initializer="fan_in"),
            "learning_rate": 1e-4,
            "gamma": 0.99,
            "double": False,
            "n_step": 1,
            "target_update_every": 250,
            "epsilon": Linear(1.0, 0.01, 0.1),
            "batch_size": 32,
            "buffer_size": 100_000,
            "learning_starts": 100_000,
            "train_every": 4,
            "gradient_steps": 1,
            "clip_reward": True,
        },
        steps=10_000_000,
        environments=1,
        source=ZOO.format("dqn", "atari") + ATARI_SOURCE + " A copy every 250 gradient steps (zoo: every 1,000 "
        "environment steps).",
    ),
}
C51 = {
    "CartPole-v1": Preset(
        config=_CART_POLE | _OF_RETURNS | {"double": True}, steps=50_000, environments=1, source=_AS_DQN.format("C51")
    ),
}
QR_DQN = {
    "CartPole-v1": Preset(
        config=_CART_POLE | {"double": True, "quantiles": 10},
        steps=50_000,
        environments=1,
        source=ZOO.format("qrdqn", "CartPole-v1") + ". A falling learning rate, a copy for each learning phase, double "
        "estimation over 10 steps, as in etude's preset of DQN.",
    ),
    "Acrobot-v1": Preset(
        config=_FOUR_FOR_FOUR | {"double": True, "n_step": 3, "quantiles": 25},
        steps=100_000,
        environments=1,
        source=ZOO.format("qrdqn", "Acrobot-v1") + _ALL_STEPS + "; a falling learning rate, double estimation over 3 "
        "steps.",
    ),
}
RAINBOW = {
    "CartPole-v1": Preset(
        config=_CART_POLE | _OF_RETURNS | {"network": Mlp((128, 128), dueling=True, noisy=0.5), "epsilon": 0.0},
        steps=50_000,
        environments=1,
        source=_AS_DQN.format("Rainbow"),
    ),
    "LunarLander-v3": Preset(
        config=_FOUR_FOR_FOUR
        | {
            "network": Mlp((128, 128), dueling=True, noisy=0.1),
            "n_step": 3,
            "v_min": -200.0,
            "v_max": 200.0,
            "batch_size": 64,
        },
        steps=100_000,
        environments=1,
        source=ZOO.format("dqn", "LunarLander-v3") + ", as in etude's preset of DQN, with smaller layers and batches; "
        "the zoo has no Rainbow. Epsilon as with DQN, and a fifth of the paper's noise.",
    ),
}
APEX_DQN = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": Linear(2.3e-3, 0.0),
            "n_step": 10,
            "epsilon": Linear(1.0, 0.4, 0.16),
            "exploration_exponent": 4.0,
            "importance_exponent": 0.4,
            "target_update_every": 128,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_024,
            "train_every": 128,
            "gradient_steps": 64,
        },
        steps=50_000,
        environments=8,
        source=ZOO.format("dqn", "CartPole-v1") + ", as in etude's preset of DQN, with 8 environments in the place of "
        "one, Ape-X's epsilons, after random actions at first, and its priorities, and learning phases half as long. "
        "Without the random actions one run in three stays between 130 and 230.",
    ),
}
R2D2 = {
    WITHOUT_VELOCITIES: Preset(
        config={
            "network": Recurrent(Mlp((64,)), 64, "gru", (64,)),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "n_step": 10,
            "epsilon": Linear(1.0, 0.02, 0.16),
            "batch_size": 64,
            "sequence_length": 20,
            "burn_in": 5,
            "train_every": 8,
            "target_update_every": 100,
            "priority_exponent": 0.0,
            "importance_exponent": 0.0,
            "normalize_observation": True,
        },
        steps=50_000,
        environments=8,
        source=f"Of etude's own, for {WITHOUT_VELOCITIES}: tried on seeds 101 to 103. With the paper's priorities some "
        "runs lose again what they had learned.",
    )
}
