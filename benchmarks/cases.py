"""What gradient steps are measured on: networks, first weights and batches, the same for every framework, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """k gradient steps in one call, on batches of `batch`."""

    algorithm: str
    observation: int
    actions: int
    widths: tuple[int, ...]
    batch: int
    k: int


CASES = {
    "dqn": Case("dqn", 4, 2, (128,), 64, 64),
    "ppo": Case("ppo", 17, 6, (64, 64), 64, 320),
    "sac": Case("sac", 17, 6, (256, 256), 256, 16),
    "sac, one step a call": Case("sac", 17, 6, (256, 256), 256, 1),
}
GAMMA, RATE, TAU, EVERY, CLIP, ENTROPY, VALUE_COST = 0.99, 3e-4, 0.005, 500, 0.2, 0.0, 0.5
LARGEST_NORM = {"dqn": 10.0, "ppo": 0.5, "sac": None}
EPSILON = {"dqn": 1e-8, "ppo": 1e-5, "sac": 1e-8}


def layers(rng: np.random.Generator, sizes: tuple[int, ...], *members: int) -> list[list[np.ndarray]]:
    """[[weights, biases], ...] of dense layers; with members, of so many networks at once."""
    return [
        [rng.uniform(-(a**-0.5), a**-0.5, (*members, a, b)).astype(np.float32), np.zeros((*members, 1, b), np.float32)]
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]


def weights(case: Case) -> dict[str, list]:
    """First weights by the name of the loss that trains them."""
    rng = np.random.default_rng(0)
    o, a, w = case.observation, case.actions, case.widths
    if case.algorithm == "dqn":
        return {"q": [layers(rng, (o, *w, a))]}
    if case.algorithm == "ppo":
        return {"model": [layers(rng, (o, *w, a)), layers(rng, (o, *w, 1)), np.zeros(a, np.float32)]}
    return {
        "critic": [layers(rng, (o + a, *w, 1), 2)],
        "actor": [layers(rng, (o, *w, 2 * a))],
        "temperature": [np.zeros((), np.float32)],
    }


def batches(case: Case) -> Arrays:
    """k batches, stacked."""
    rng = np.random.default_rng(1)
    lead = (case.k, case.batch)
    normal = lambda *shape: rng.standard_normal((*lead, *shape), np.float32)  # noqa: E731
    found = {
        "observation": normal(case.observation),
        "action": rng.integers(0, case.actions, lead) if case.algorithm == "dqn" else np.tanh(normal(case.actions)),
        "reward": normal(),
        "discount": np.full(lead, GAMMA, np.float32),
        "weight": np.ones(lead, np.float32),
    }
    if case.algorithm == "ppo":
        return found | {"log_prob": normal() - 6, "advantage": normal(), "return": normal()}
    found["next_observation"] = normal(case.observation)
    if case.algorithm == "sac":
        found |= {"noise": normal(case.actions), "next_noise": normal(case.actions)}
    return found
