"""A population of AgileRL, for `evolution.py`, which calls this with a Python that has AgileRL and says what to measure
as JSON: seconds and environment steps, those of evaluations included, until an evaluation of a member reaches the
target, and the peak of memory. AgileRL's own training functions train; they are watched through the environment and
the tournament. Members share one replay, as these functions have it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import measure
import numpy as np


class Reached(Exception):
    """An evaluation reached the target."""


class Counting(gymnasium.vector.VectorWrapper):
    """Counts the steps of all environments."""

    taken = 0

    def step(self, actions: Any) -> Any:
        self.taken += self.num_envs
        return super().step(actions)


def population(spec: dict[str, Any], env: Any) -> list[Any]:
    """Members with the hyperparameters and networks of etude's population."""
    from agilerl.algorithms import DQN, PPO
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter

    first, latent, *head = spec["widths"]
    layers = {"layer_norm": False}
    (low, high), (fewest, most) = spec["limits"], spec["batch_limits"]
    given = {
        "learn_step": spec.get("steps_per_update"), "batch_size": spec["batch_size"], "lr": spec["learning_rate"],
        "gamma": spec["gamma"],
        "hp_config": HyperparameterConfig(
            lr=RLParameter(min=low, max=high), batch_size=RLParameter(min=fewest, max=most, dtype=int)
        ),
        "net_config": {
            "encoder_config": {"hidden_size": [first], **layers}, "latent_dim": latent,
            "head_config": {"hidden_size": head, **layers},
        },
    }  # fmt: skip
    if spec["algorithm"] == "dqn":
        kind: Any = DQN
        given |= {"double": False, "tau": spec["tau"]}
    else:
        kind = PPO
        given |= {
            "learn_step": spec["rollout_length"] * spec["environments"], "num_envs": spec["environments"],
            "update_epochs": spec["epochs"], "gae_lambda": spec["gae_lambda"], "clip_coef": spec["clip"],
            "ent_coef": spec["entropy"],
        }  # fmt: skip
    return kind.population(
        size=spec["population"],
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        device="cpu",
        **given,
    )


def selection(spec: dict[str, Any], watch: Callable[[float], None]) -> tuple[Any, Any]:
    """The tournament and the mutations, with the probabilities of AgileRL's README."""
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection

    class Watched(TournamentSelection):
        """Reports the best fitness of each generation."""

        def select(self, population: list[Any]) -> Any:
            watch(max(float(agent.fitness[-1]) for agent in population))
            return super().select(population)

    mutations = Mutations(
        no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0.0, rl_hp=0.2,
        mutation_sd=0.1, rand_seed=spec["seed"], device="cpu",
    )  # fmt: skip
    return Watched(2, True, spec["population"]), mutations


def evolve(spec: dict[str, Any]) -> dict[str, Any]:
    """Train a population until a generation reaches the target, or to its last step."""
    import torch
    from agilerl.components import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.training.train_on_policy import train_on_policy
    from agilerl.utils.utils import make_vect_envs

    np.random.seed(spec["seed"])  # noqa: NPY002  (the library draws from the global generators)
    torch.manual_seed(spec["seed"])
    torch.set_num_threads(1)
    found: dict[str, Any] = {"reached": False, "steps": None, "seconds": None, "best": None}
    began = time.perf_counter()
    env = Counting(make_vect_envs(spec["env"], num_envs=spec["environments"], should_async_vector=spec["processes"]))

    def watch(fitness: float) -> None:
        found["best"] = fitness if found["best"] is None else max(found["best"], fitness)
        if fitness >= spec["target"]:
            seconds = round(time.perf_counter() - began, 1)
            found.update(reached=True, steps=env.taken, seconds=seconds)
            raise Reached

    tournament, mutations = selection(spec, watch)
    common = {
        "env": env, "env_name": spec["env"], "pop": population(spec, env), "max_steps": spec["steps"],
        "evo_steps": spec["every"], "eval_loop": 1, "selection_strategy": tournament, "mutation": mutations,
        "verbose": False,
    }  # fmt: skip
    try:
        if spec["algorithm"] == "dqn":
            train_off_policy(
                algo="DQN", memory=ReplayBuffer(spec["buffer_size"]), learning_delay=spec["learning_starts"],
                eps_end=spec["epsilon_end"], eps_decay=spec["epsilon_decay"], **common,
            )  # fmt: skip
        else:
            train_on_policy(algo="PPO", **common)
    except Reached:
        pass
    return {**found, "steps_taken": env.taken}


if __name__ == "__main__":
    with measure.PeakMemory() as memory:
        result = evolve(json.loads(sys.argv[1]))
    measure.answer({**result, "megabytes": memory.peak})
