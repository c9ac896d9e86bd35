"""Presets of DDPG, TD3, SAC, and what follows them.

The zoo's SAC acts uniformly at random until `learning_starts`; etude samples its first, broad, policy.
"""

from __future__ import annotations

from typing import Any

from etude.base.schedules import Linear
from etude.networks import ActorCritic, Mlp
from etude.presets.preset import POINT, ZOO, Preset

_PENDULUM: dict[str, Any] = {
    "network": Mlp((400, 300)),
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "batch_size": 256,
    "buffer_size": 200_000,
}
_RANDOM: dict[str, Any] = {"learning_starts": 10_000, "random_steps": 10_000, "exploration_noise": 0.1}
_POINT: dict[str, Any] = {
    "network": Mlp((64, 64)),
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "batch_size": 256,
    "learning_starts": 1_000,
    "hindsight": "future",
    "hindsight_goals": 4,
}
_POINT_SOURCE = f"Of etude's own, for {POINT}, tried on seed 101; relabelling as in Andrychowicz et al. 2017, "
_POINT_SOURCE += "arXiv:1707.01495, section 4.5."


def _deterministic(zoo: str) -> dict[str, Preset]:
    """What the presets of DDPG and TD3 share. zoo: the name of the file."""
    noisy = {"random_steps": 1_000, "exploration_noise": 0.2}
    source = ZOO.format(zoo, "Pendulum-v1") + "."
    return {
        "Pendulum-v1": Preset(config=_PENDULUM | _RANDOM, steps=20_000, environments=1, source=source),
        POINT: Preset(config=_POINT | noisy, steps=3_000, environments=1, source=_POINT_SOURCE),
    }


DDPG = _deterministic("ddpg")
TD3 = {
    **_deterministic("td3"),
    "HalfCheetah-v5": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "batch_size": 256,
            **_RANDOM,
        },
        steps=100_000,
        environments=1,
        source="Fujimoto et al. 2018, arXiv:1802.09477, table 3, with 256 x 256 units and batches of 256, as in the "
        "authors' later code (paper: 400 x 300, 100).",
    ),
}
_SAC: dict[str, Any] = {
    "network": Mlp((256, 256)),
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.005,
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "train_every": 1,
    "gradient_steps": 1,
}
SAC = {
    "Pendulum-v1": Preset(
        config=_SAC,
        steps=20_000,
        environments=1,
        source=ZOO.format("sac", "Pendulum-v1") + ".",
    ),
    "MountainCarContinuous-v0": Preset(
        config={
            **_SAC,
            "network": Mlp((64, 64)),
            "learning_rate": 3e-4,
            "gamma": 0.9999,
            "tau": 0.01,
            "temperature": 0.1,
            "learn_temperature": False,
            "batch_size": 512,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "train_every": 32,
            "gradient_steps": 32,
            "exploration_correlation": 0.95,
        },
        steps=50_000,
        environments=1,
        source=ZOO.format("sac", "MountainCarContinuous-v0") + ". Samples that are correlated in time, in the place of "
        "the zoo's noise that depends on the state (gSDE): independent ones never reach the flag.",
    ),
    "LunarLanderContinuous-v3": Preset(
        config={
            **_SAC,
            "network": Mlp((400, 300)),
            "learning_rate": Linear(7.3e-4, 0.0),
            "tau": 0.01,
            "learning_starts": 10_000,
        },
        steps=500_000,
        environments=1,
        source=ZOO.format("sac", "LunarLanderContinuous-v3") + ".",
    ),
    "BipedalWalker-v3": Preset(
        config={
            **_SAC,
            "network": Mlp((400, 300)),
            "learning_rate": 7.3e-4,
            "gamma": 0.98,
            "tau": 0.02,
            "buffer_size": 300_000,
            "learning_starts": 10_000,
            "train_every": 64,
            "gradient_steps": 64,
        },
        steps=500_000,
        environments=1,
        source=ZOO.format("sac", "BipedalWalker-v3") + ". Without gSDE; not run to its end yet.",
    ),
    "HalfCheetah-v5": Preset(
        config={
            **_SAC,
            "learning_starts": 5_000,
        },
        steps=100_000,
        environments=1,
        source="Haarnoja et al. 2018, arXiv:1812.05905, table 1; a higher learning rate (paper: 0.0003).",
    ),
    POINT: Preset(config=_POINT, steps=5_000, environments=1, source=_POINT_SOURCE),
}
DISCRETE_SAC = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((128, 128)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "tau": 0.01,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 1_000,
            "train_every": 2,
            "gradient_steps": 1,
        },
        steps=50_000,
        environments=1,
        source="Of etude's own. Found for CartPole-v1 with other seeds than those of the results.",
    ),
}
APEX_DDPG = {
    "Pendulum-v1": Preset(
        config=_PENDULUM
        | {"exploration_exponent": 4.0, "learning_starts": 1_024, "train_every": 128, "gradient_steps": 64},
        steps=20_000,
        environments=8,
        source=ZOO.format("ddpg", "Pendulum-v1") + ", with 8 environments in the place of one, Ape-X's noises and "
        "priorities, returns over 3 steps, and half as many gradient steps.",
    ),
}
# SAC with prior data, for any environment. Ball et al. 2023, arXiv:2302.02948, and the authors' code (ikostrikov/rlpd,
# locomotion): ten critics with layer normalisation, two of them in each target, twenty gradient steps of the critics
# and one of the actor for each environment step, and half of every batch from recorded data.
RLPD: dict[str, Any] = {
    "network": ActorCritic(Mlp((256, 256)), Mlp((256, 256), layer_norm=True)),
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "batch_size": 256,
    "learning_starts": 5_000,
    "train_every": 1,
    "gradient_steps": 20,
    "policy_delay": 20,
    "n_critics": 10,
    "n_target_critics": 2,
}
"""Differences from the authors' code: networks start from etude's initial weights (they use Xavier's), the target
entropy is minus the action dimension (they use half of it: give `target_entropy`), and actions before
`learning_starts` are those of the first policy (they use uniform ones)."""
