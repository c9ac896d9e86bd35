"""Presets of Ape-X. Run them with workers, which collect while the learner learns: `--workers 2 --overlap`."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

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
APEX_DDPG = {
    "Pendulum-v1": Preset(
        config={
            "network": Mlp((400, 300)),
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "exploration_exponent": 4.0,
            "batch_size": 256,
            "buffer_size": 200_000,
            "learning_starts": 1_024,
            "train_every": 128,
            "gradient_steps": 64,
        },
        steps=20_000,
        environments=8,
        source=ZOO.format("ddpg", "Pendulum-v1") + ", with 8 environments in the place of one, Ape-X's noises and "
        "priorities, returns over 3 steps, and half as many gradient steps.",
    ),
}
