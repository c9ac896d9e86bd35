"""PPO of RLlib's new API stack, measured in an environment of its own: see rllib.py.

`PYTHON peers_rllib.py CartPole-v1 WORKERS ITERATIONS` prints JSON; `PYTHON peers_rllib.py versions` what is installed.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import time

from measure import answer
from rllib import BATCH, ENVIRONMENTS, EPOCHS, MINIBATCH, WIDTHS


def measured(env_id: str, workers: int, iterations: int) -> dict:
    """Environment steps per second of so many iterations, after one that is not counted."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=max(1, workers) + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = (
        PPOConfig()
        .environment(env_id)
        .framework("torch")
        .env_runners(
            num_env_runners=workers,
            num_envs_per_env_runner=ENVIRONMENTS // max(1, workers),
            rollout_fragment_length=BATCH // ENVIRONMENTS,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(WIDTHS), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=BATCH, minibatch_size=MINIBATCH, num_epochs=EPOCHS, lr=3e-4, gamma=0.99,
            lambda_=0.95, clip_param=0.2, use_kl_loss=False, vf_loss_coeff=0.5, entropy_coeff=0.0, grad_clip=0.5,
        )
    )  # fmt: skip
    algorithm = config.build_algo()
    before = algorithm.train()["num_env_steps_sampled_lifetime"]
    began = time.perf_counter()
    for _ in range(iterations):
        result = algorithm.train()
    seconds = time.perf_counter() - began
    found = {"steps": result["num_env_steps_sampled_lifetime"] - before, "seconds": seconds}
    algorithm.stop()
    ray.shutdown()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "versions":
        answer({name: importlib.metadata.version(name) for name in ("ray", "torch", "numpy", "gymnasium")})
    else:
        answer(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
