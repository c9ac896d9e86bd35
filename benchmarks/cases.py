"""What gradient steps are measured on: networks, first weights and batches, the same for every framework, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]
Layers = list[list[np.ndarray]]


@dataclass(frozen=True)
class Case:
    """k gradient steps in one call, on batches of `batch` steps, or of so many unrolls of `length` steps."""

    algorithm: str
    observation: int
    actions: int
    widths: tuple[int, ...]
    batch: int
    k: int
    length: int = 0

    @property
    def rules(self) -> Rules:
        return RULES[self.algorithm]


@dataclass(frozen=True)
class Rules:
    """What a gradient step does besides following gradients. Groups are the names that `losses` go by."""

    discrete: bool
    largest_norm: float | None = None
    epsilon: float = 1e-8  # of Adam
    copied: tuple[str, ...] = ()  # groups that are copied every EVERY steps
    followed: tuple[str, ...] = ()  # groups that others follow by TAU
    delayed: tuple[str, ...] = ()  # groups that learn at every second step, when also all are followed

    @property
    def lagged(self) -> tuple[str, ...]:
        """Groups that have a second copy."""
        return (*self.copied, *self.followed)


RULES = {
    "dqn": Rules(True, 10.0, copied=("q",)),
    "c51": Rules(True, 10.0, copied=("q",)),
    "qr_dqn": Rules(True, 10.0, copied=("q",)),
    "discrete_sac": Rules(True, followed=("critic",)),
    "ppo": Rules(False, 0.5, 1e-5),
    "a2c": Rules(True, 0.5, 1e-5),
    "impala": Rules(True, 0.5, 1e-5),
    "appo": Rules(True, 0.5, 1e-5, copied=("model",)),
    "sac": Rules(False, followed=("critic",)),
    "ddpg": Rules(False, followed=("actor", "critic")),
    "td3": Rules(False, followed=("actor", "critic"), delayed=("actor",)),
    "bc": Rules(True),
    "marwil": Rules(True),
    "iql": Rules(False, followed=("critic",)),
    "cql": Rules(False, followed=("critic",)),
    "td3_bc": Rules(False, followed=("actor", "critic"), delayed=("actor",)),
    "maddpg": Rules(True, 0.5, followed=tuple(f"{agent}.{part}" for agent in "abc" for part in ("actor", "critic"))),
}
CASES = {
    "dqn": Case("dqn", 4, 2, (128,), 64, 64),
    "c51": Case("c51", 4, 2, (128,), 64, 64),
    "qr_dqn": Case("qr_dqn", 4, 2, (128,), 64, 64),
    "discrete_sac": Case("discrete_sac", 4, 2, (128, 128), 128, 16),
    "ppo": Case("ppo", 17, 6, (64, 64), 64, 320),
    "a2c": Case("a2c", 4, 2, (64, 64), 80, 1),
    "impala": Case("impala", 4, 2, (64, 64), 16, 4, length=20),
    "appo": Case("appo", 4, 2, (64, 64), 4, 16, length=50),
    "sac": Case("sac", 17, 6, (256, 256), 256, 16),
    "sac, one step a call": Case("sac", 17, 6, (256, 256), 256, 1),
    "ddpg": Case("ddpg", 17, 6, (256, 256), 256, 16),
    "td3": Case("td3", 17, 6, (256, 256), 256, 16),
    "bc": Case("bc", 4, 2, (256, 256), 256, 100),
    "marwil": Case("marwil", 4, 2, (256, 256), 256, 100),
    "iql": Case("iql", 17, 6, (256, 256), 256, 16),
    "cql": Case("cql", 17, 6, (256, 256), 256, 4),
    "td3_bc": Case("td3_bc", 17, 6, (256, 256), 256, 16),
    "maddpg": Case("maddpg", 18, 5, (64, 64), 256, 16),
}
GAMMA, RATE, TAU, EVERY, CLIP, ENTROPY, VALUE_COST = 0.99, 3e-4, 0.005, 500, 0.2, 0.01, 0.5
ATOMS, LOWEST, HIGHEST, QUANTILES = 51, -10.0, 10.0, 50
EXPECTILE, BETA, ALPHA, TARGET_NOISE, REACH, DELAY, CQL_ACTIONS = 0.7, 3.0, 2.5, 0.2, 0.5, 2, 10
POLICY_COST = 1e-3  # of MADDPG's logits
AGENTS = ("a", "b", "c")


def layers(rng: np.random.Generator, sizes: tuple[int, ...], *members: int) -> Layers:
    """[[weights, biases], ...] of dense layers; with members, of so many networks at once."""
    return [
        [rng.uniform(-(a**-0.5), a**-0.5, (*members, a, b)).astype(np.float32), np.zeros((*members, 1, b), np.float32)]
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]


def weights(case: Case) -> dict[str, list]:
    """First weights by the name of the loss that trains them."""
    rng = np.random.default_rng(0)
    o, a, w = case.observation, case.actions, case.widths
    free = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    net: Callable[..., Layers] = lambda inputs, outputs, *members: layers(rng, (inputs, *w, outputs), *members)  # noqa: E731
    if case.algorithm in ("dqn", "c51", "qr_dqn"):
        return {"q": [net(o, a * {"dqn": 1, "c51": ATOMS, "qr_dqn": QUANTILES}[case.algorithm])]}
    if case.algorithm == "ppo":
        return {"model": [net(o, a), net(o, 1), free(a)]}
    if case.algorithm in ("a2c", "impala", "appo"):
        return {"model": [net(o, a), net(o, 1)]}
    if case.algorithm == "discrete_sac":
        return {"critic": [net(o, a, 2)], "actor": [net(o, a)], "temperature": [free()]}
    if case.algorithm in ("sac", "cql"):
        return {"critic": [net(o + a, 1, 2)], "actor": [net(o, 2 * a)], "temperature": [free()]}
    if case.algorithm == "ddpg":
        return {"critic": [net(o + a, 1)], "actor": [net(o, a)]}
    if case.algorithm in ("td3", "td3_bc"):
        return {"critic": [net(o + a, 1, 2)], "actor": [net(o, a)]}
    if case.algorithm == "bc":
        return {"actor": [net(o, a)]}
    if case.algorithm == "marwil":
        return {"actor": [net(o, a)], "critic": [net(o, 1)]}
    if case.algorithm == "iql":
        return {"state_value": [net(o, 1)], "critic": [net(o + a, 1, 2)], "actor": [net(o, a), free(a)]}
    if case.algorithm == "maddpg":
        everything = len(AGENTS) * (o + a + 1)
        networks = {"critic": lambda: [net(everything, 1, 1)], "actor": lambda: [net(o, a)]}
        return {f"{agent}.{part}": make() for agent in AGENTS for part, make in networks.items()}
    raise KeyError(case.algorithm)


def batches(case: Case) -> Arrays:
    """k batches, stacked."""
    rng = np.random.default_rng(1)
    lead = (case.k, case.batch, case.length) if case.length else (case.k, case.batch)
    seen = (len(AGENTS),) if case.algorithm == "maddpg" else ()
    normal = lambda *shape: rng.standard_normal((*lead, *shape), np.float32)  # noqa: E731
    a = case.actions
    found = {
        "observation": normal(*seen, case.observation),
        "action": rng.integers(0, a, (*lead, *seen)) if case.rules.discrete else np.tanh(normal(a)),
        "reward": normal(*seen),
        "discount": np.full((*lead, *seen), GAMMA, np.float32),
        "weight": np.ones(lead, np.float32),
    }
    if case.algorithm in ("ppo", "a2c"):
        return found | {"log_prob": normal() - 6, "advantage": normal(), "return": normal()}
    found["next_observation"] = normal(*seen, case.observation)
    if case.length:
        found |= {"log_prob": math.log(0.5) + 0.1 * normal(), "goes_on": np.ones(lead, np.float32)}
    if case.algorithm in ("sac", "cql"):
        found |= {"noise": normal(a), "next_noise": normal(a)}
    if case.algorithm == "cql":
        found |= {name: normal(CQL_ACTIONS, a) for name in ("here", "after")}
        found["uniform"] = rng.uniform(-1, 1, (*lead, CQL_ACTIONS, a)).astype(np.float32)
    if case.algorithm in ("td3", "td3_bc"):
        found["target_noise"] = normal(a)
    if case.algorithm == "maddpg":
        drawn = rng.gumbel(size=(2, *lead, len(AGENTS), a)).astype(np.float32)
        found |= {"gumbel": drawn[0], "next_gumbel": drawn[1]}
    return found
