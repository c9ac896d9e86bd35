"""What gradient steps are measured on: networks, first weights and batches, the same for every framework, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Layers = list[list[np.ndarray]]


@dataclass(frozen=True)
class Case:
    """k gradient steps in one call, on batches of `batch` steps, or of so many unrolls of `length` steps."""

    algorithm: str
    observation: int | tuple[int, int, int]  # numbers, or the shape of an image [height, width, channels]
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
    def target_params(self) -> tuple[str, ...]:
        """Groups that have a second copy."""
        return (*self.copied, *self.followed)


RULES = {
    "dqn": Rules(True, 10.0, copied=("q",)),
    "c51": Rules(True, 10.0, copied=("q",)),
    "rainbow": Rules(True, 10.0, copied=("q",)),
    "qr_dqn": Rules(True, 10.0, copied=("q",)),
    "r2d2": Rules(True, 40.0, copied=("q",)),
    "discrete_sac": Rules(True, followed=("critic",)),
    "ppo": Rules(False, 0.5, 1e-5),
    "recurrent_ppo": Rules(True, 0.5, 1e-5),
    "mappo": Rules(True, 10.0, 1e-5),
    "gail": Rules(False, 0.5, 1e-5),
    "airl": Rules(False, 0.5, 1e-5),
    "reinforce": Rules(True, 0.5),
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
    "rainbow": Case("rainbow", 4, 2, (64, 64), 64, 64),
    "qr_dqn": Case("qr_dqn", 4, 2, (128,), 64, 64),
    "r2d2": Case("r2d2", 4, 2, (64,), 32, 4, length=40),
    "discrete_sac": Case("discrete_sac", 4, 2, (128, 128), 128, 16),
    "ppo": Case("ppo", 17, 6, (64, 64), 64, 320),
    "recurrent_ppo": Case("recurrent_ppo", 4, 2, (64,), 8, 16, length=32),
    "mappo": Case("mappo", 18, 5, (64, 64), 256, 40),
    "gail": Case("gail", 17, 6, (64, 64), 64, 320),
    "airl": Case("airl", 17, 6, (64, 64), 64, 320),
    "reinforce": Case("reinforce", 4, 2, (64, 64), 1024, 1),
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
IMAGE, NATURE = (84, 84, 4), ((32, 8), (64, 4), (64, 3))  # (filters, kernel); strides are halves of kernels
IMAGES = {
    "dqn, images, 32": Case("dqn", IMAGE, 6, (512,), 32, 16),
    "dqn, images, 256": Case("dqn", IMAGE, 6, (512,), 256, 4),
    "ppo, images, 32": Case("ppo", IMAGE, 6, (512,), 32, 16),
    "ppo, images, 256": Case("ppo", IMAGE, 6, (512,), 256, 4),
}
GAMMA, RATE, TAU, EVERY, CLIP, ENTROPY, VALUE_COST = 0.99, 3e-4, 0.005, 500, 0.2, 0.01, 0.5
TEAM_VALUE_COST = 1.0  # of MAPPO
ATOMS, LOWEST, HIGHEST, QUANTILES = 51, -10.0, 10.0, 50
EXPECTILE, BETA, ALPHA, TARGET_NOISE, REACH, DELAY, CQL_ACTIONS = 0.7, 3.0, 2.5, 0.2, 0.5, 2, 10
UNITS, N_STEP, BURN_IN, PRIORITY_MIX = 64, 5, 10, 0.9  # of GRUs; of R2D2
RECURRENT = ("recurrent_ppo", "r2d2")
ROLLED_OUT = ("ppo", "recurrent_ppo", "mappo", "gail", "airl", "reinforce", "a2c")
NOISES = ("q", "q_target", "chooser")  # of Rainbow: what each evaluation of a network takes
POLICY_COST = 1e-3  # of MADDPG's logits
AGENTS = ("a", "b", "c")


def layers(rng: np.random.Generator, sizes: tuple[Any, ...], *members: int) -> Layers:
    """[[weights, biases], ...] of dense layers, after convolutions [height, width, channels, filters] where the first
    size is the shape of an image; with members, of so many networks at once."""
    if isinstance(sizes[0], tuple):
        (side, _, channels), found = sizes[0], []
        for filters, kernel in NATURE:
            shape, reach = (kernel, kernel, channels, filters), (kernel * kernel * channels) ** -0.5
            found.append([rng.uniform(-reach, reach, shape).astype(np.float32), np.zeros(filters, np.float32)])
            side, channels = (side - kernel) // max(1, kernel // 2) + 1, filters
        return found + layers(rng, (side * side * channels, *sizes[1:]))
    return [
        [rng.uniform(-(a**-0.5), a**-0.5, (*members, a, b)).astype(np.float32), np.zeros((*members, 1, b), np.float32)]
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]


def noisy(networks: list[Layers]) -> list[Layers]:
    """The same with the scales of noise, [weights, biases, scales, scales of biases] of each layer."""
    scales = lambda w, b: [np.full_like(x, 0.5 * w.shape[0] ** -0.5) for x in (w, b)]  # noqa: E731
    return [[[w, b, *scales(w, b)] for w, b in network] for network in networks]


def recurrent(rng: np.random.Generator, case: Case, outputs: int) -> list:
    """Layers before a GRU, its [weights, biases] of what is fed in and of the memory, a layer after it."""
    sizes = (case.widths[-1], UNITS)
    cell = [part for size in sizes for w, b in layers(rng, (size, 3 * UNITS)) for part in (w, b[0])]
    return [layers(rng, (case.observation, *case.widths)), cell, layers(rng, (UNITS, outputs))]


def weights(case: Case) -> dict[str, list]:
    """First weights by the name of the loss that trains them."""
    rng = np.random.default_rng(0)
    o, a, w = case.observation, case.actions, case.widths
    free = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    net: Callable[..., Layers] = lambda inputs, outputs, *members: layers(rng, (inputs, *w, outputs), *members)  # noqa: E731
    if case.algorithm in ("dqn", "c51", "qr_dqn"):
        return {"q": [net(o, a * {"dqn": 1, "c51": ATOMS, "qr_dqn": QUANTILES}[case.algorithm])]}
    if case.algorithm == "rainbow":
        heads = [layers(rng, (*w[-2:], units)) for units in (ATOMS, a * ATOMS)]
        return {"q": noisy([layers(rng, (o, *w[:-1])), *heads])}
    if case.algorithm == "r2d2":
        return {"q": recurrent(rng, case, a)}
    if case.algorithm == "recurrent_ppo":
        return {"model": [recurrent(rng, case, a), recurrent(rng, case, 1)]}
    if case.algorithm == "mappo":
        return {f"{agent}.model": [net(o, a), net(len(AGENTS) * (o + 1), 1)] for agent in AGENTS}
    if case.algorithm == "ppo":
        return {"model": [net(o, a), free(a), net(o, 1)]}
    if case.algorithm in ("gail", "airl"):
        discriminator = [net(o + a, 1)] if case.algorithm == "gail" else [net(o + a, 1), net(o, 1)]
        return {"model": [net(o, a), free(a), net(o, 1)], "discriminator": discriminator}
    if case.algorithm in ("reinforce", "a2c", "impala", "appo"):
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
    rng, a = np.random.default_rng(1), case.actions
    lead = (case.k, case.batch, case.length) if case.length else (case.k, case.batch)
    seen = (len(AGENTS),) if case.algorithm in ("maddpg", "mappo") else ()
    normal = lambda *shape: rng.standard_normal((*lead, *shape), np.float32)  # noqa: E731

    def observed() -> np.ndarray:
        if isinstance(case.observation, tuple):
            return rng.integers(0, 256, (*lead, *case.observation), np.uint8)
        return normal(*seen, case.observation)

    found = {
        "observation": observed(),
        "action": rng.integers(0, a, (*lead, *seen)) if case.rules.discrete else np.tanh(normal(a)),
        "reward": normal(*seen),
        "discount": np.full((*lead, *seen), GAMMA, np.float32),
        "weight": np.ones(lead, np.float32),
    }
    if case.algorithm in ROLLED_OUT:
        return found | rolled_out(case, rng, found)
    found["next_observation"] = observed()
    if case.length and case.algorithm not in RECURRENT:
        found |= {"log_prob": math.log(0.5) + 0.1 * normal(), "goes_on": np.ones(lead, np.float32)}
    return found | replayed(case, rng, normal)


def rolled_out(case: Case, rng: np.random.Generator, found: Arrays) -> Arrays:
    """What batches of the present policy's steps have besides."""
    normal = lambda: rng.standard_normal(found["reward"].shape, np.float32)  # noqa: E731
    told = {"advantage": normal(), "return": normal()}
    if case.algorithm == "reinforce":
        rows = 4 * case.batch // 5  # the others fill the batch up
        weight = np.where(np.arange(case.batch) < rows, case.batch / rows, 0.0).astype(np.float32)
        return {"return": told["return"], "weight": weight + np.zeros_like(found["weight"])}
    if not case.rules.discrete or case.algorithm == "a2c":
        told["log_prob"] = normal() - 6
    else:
        told["log_prob"] = 0.1 * normal() - math.log(case.actions)
    if case.algorithm == "mappo":
        told["active"] = (rng.random(found["reward"].shape) < 0.9).astype(np.float32)
    if case.algorithm == "recurrent_ppo":
        told["first"] = (rng.random(found["reward"].shape) < 0.01).astype(np.float32)
        told["recurrent_state"] = np.tanh(rng.standard_normal((case.k, case.batch, 2 * UNITS), np.float32))
    if case.algorithm in ("gail", "airl"):
        shape = found["observation"].shape
        told |= {name: rng.standard_normal(shape, np.float32) for name in ("next_observation", "expert_observation")}
        told["expert_next_observation"] = rng.standard_normal(shape, np.float32)
        told |= {"expert_action": found["action"][:, ::-1].copy(), "expert_discount": found["discount"]}
    return told


def replayed(case: Case, rng: np.random.Generator, normal: Callable) -> Arrays:
    """What other batches have besides: for the most part what losses draw. normal: arrays [k, batch, ...]."""
    found, a, lead = {}, case.actions, (case.k, case.batch)
    if case.algorithm == "rainbow":
        size = sum(sum(w.shape) for network in weights(case)["q"] for w, *_ in network)
        return {f"noise_{name}": rng.standard_normal((case.k, size), np.float32) for name in NOISES}
    if case.algorithm == "r2d2":
        times, warm = np.arange(case.length), rng.integers(0, BURN_IN + 1, (*lead, 1))
        end = rng.integers(case.length // 2, 2 * case.length, (*lead, 1))  # most are not filled up
        found["mask"] = ((times >= warm) & (times < end)).astype(np.float32)
        found["recurrent_state"] = np.tanh(rng.standard_normal((*lead, UNITS), np.float32))
        found["weight"] = rng.uniform(0.5, 1.0, lead).astype(np.float32)
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
