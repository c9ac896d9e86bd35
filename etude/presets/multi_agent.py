"""Presets of the algorithms for several agents, on tasks of MPE (`pip install mpe2`)."""

from __future__ import annotations

from typing import Any

from etude.networks import Mlp
from etude.presets.preset import Preset

SPEAKER_LISTENER, SPREAD = "mpe2:simple_speaker_listener_v4", "mpe2:simple_spread_v3"
SOURCE = "Of etude's own, for {}; AgileRL's MADDPG was measured with the same figures, benchmarks/peers_maddpg.py."
SAME: dict[str, Any] = {"network": Mlp((128, 128)), "learning_rate": 1e-3, "gamma": 0.95}
REPLAYED: dict[str, Any] = {
    **SAME,
    "batch_size": 256,
    "learning_starts": 256,
    "train_every": 25,
    "gradient_steps": 25,
    "tau": 0.01,
}


def _both(config: dict[str, Any]) -> dict[str, Preset]:
    return {
        task: Preset(config=config, steps=10_000, environments=1, source=SOURCE.format(task))
        for task in (SPEAKER_LISTENER, SPREAD)
    }


MADDPG = _both(REPLAYED)
MATD3 = _both(REPLAYED)
MAPPO = _both({**SAME, "rollout_length": 128, "minibatch_size": None})
