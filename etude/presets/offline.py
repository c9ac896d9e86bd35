"""Presets of the algorithms that learn from recorded data. Their steps are gradient steps.

There is no source for such small tasks: the figures were tried on the mediocre data that benchmarks/offline_data.py
makes, with other seeds than those of benchmarks/offline.json. They are for data like it; good data wants much more of
`cql_alpha` (see benchmarks/offline.py), and less of `beta`.
"""

from __future__ import annotations

from typing import Any

from etude.base.schedules import Linear
from etude.networks import ActorCritic, Mlp
from etude.presets.preset import Preset

SOURCE = "tried on seeds 101 and 102 with the data of benchmarks/offline_data.py for {}"
SMALL: dict[str, Any] = {"network": Mlp((64, 64)), "batch_size": 64}


def _preset(env: str, steps: int, source: str = SOURCE, **config: Any) -> Preset:
    return Preset(config={**SMALL, **config}, steps=steps, environments=1, source=source.format(env))


FALLING = Linear(1e-3, 0.0)
SHORT_SIGHT: dict[str, Any] = {"gamma": 0.97, "tau": 0.05}  # values that a few thousand gradient steps can reach

AWAC = {
    "Pendulum-v1": _preset("Pendulum-v1", 4_000, learning_rate=1e-3, beta=3.0, normalize_reward=True, **SHORT_SIGHT),
}
BC = {
    "CartPole-v1": _preset("CartPole-v1", 2_000, learning_rate=FALLING),
    "Pendulum-v1": _preset("Pendulum-v1", 2_000, learning_rate=FALLING),
    "Reacher-v5": _preset(
        "Reacher-v5", 2_000, source="the preset for Pendulum-v1, not tuned for {}", learning_rate=FALLING
    ),
}
CAL_QL = {
    "Pendulum-v1": _preset(
        "Pendulum-v1",
        4_000,
        learning_rate=1e-3,
        cql_alpha=1.0,
        samples=3,
        normalize_reward=True,
        **SHORT_SIGHT,
    ),
}
CQL = {
    "CartPole-v1": _preset("CartPole-v1", 5_000, learning_rate=Linear(5e-4, 0.0), cql_alpha=0.1),
    "Pendulum-v1": _preset(
        "Pendulum-v1",
        2_000,
        learning_rate=1e-3,
        cql_alpha=1.0,
        samples=3,
        normalize_reward=True,
        **SHORT_SIGHT,
    ),
}
EDAC = {
    "Reacher-v5": _preset(
        "Reacher-v5",
        4_000,
        source="tried on seed 101 with the data of benchmarks/offline_data.py for {}",
        learning_rate=1e-3,
        diversity=5.0,
        **SHORT_SIGHT,
    ),
}
IQL = {
    "CartPole-v1": _preset("CartPole-v1", 4_000, learning_rate=1e-3, batch_size=256),
    "Pendulum-v1": _preset(
        "Pendulum-v1",
        4_000,
        learning_rate=1e-3,
        batch_size=256,
        expectile=0.9,
        normalize_reward=True,
        **SHORT_SIGHT,
    ),
}
MARWIL = {
    "CartPole-v1": _preset("CartPole-v1", 3_000, learning_rate=FALLING),
    "Pendulum-v1": _preset("Pendulum-v1", 3_000, learning_rate=FALLING, gamma=0.95),
}
REBRAC = {
    "Pendulum-v1": _preset(
        "Pendulum-v1",
        3_000,
        network=ActorCritic(Mlp((64, 64)), Mlp((64, 64), layer_norm=True)),
        learning_rate=1e-3,
        actor_penalty=0.4,
        critic_penalty=0.1,
        normalize_reward=True,
        **SHORT_SIGHT,
    ),
}
TD3_BC = {"Pendulum-v1": _preset("Pendulum-v1", 3_000, learning_rate=1e-3, **SHORT_SIGHT)}
