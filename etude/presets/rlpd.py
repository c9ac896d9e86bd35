"""SAC with prior data (RLPD), as hyperparameters of SAC for any environment.

Ball et al. 2023, Efficient online reinforcement learning with offline data, arXiv:2302.02948, and the authors' code
(ikostrikov/rlpd, locomotion): ten critics with layer normalisation, two of them in each target, twenty gradient steps
of the critics and one of the actor for each environment step, and half of every batch from recorded data.
"""

from __future__ import annotations

from typing import Any

from etude.networks import ActorCritic, Mlp

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
