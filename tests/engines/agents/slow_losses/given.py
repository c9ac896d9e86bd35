"""What a slow program is given: networks, distributions of one action, and the rows of a batch."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

relu = lambda x: np.maximum(x, 0.0)  # noqa: E731
sigmoid = lambda x: 1.0 / (1.0 + np.exp(-x))  # noqa: E731
softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731

# What networks compute


def vector(space: Any, value: Any, moments: dict[str, np.ndarray], path: str = "") -> np.ndarray:
    """A value of a space as networks read it: parts in the order of their names, choices as one-hot vectors, floats
    standardised where there are moments of them; no masks."""
    if isinstance(space, gym.Dict | gym.Tuple):
        keys = sorted(value) if isinstance(space, gym.Dict) else range(len(space.spaces))
        inner = [(key, space.spaces[key]) for key in keys if key != "action_mask"]
        return np.concatenate([vector(part, value[key], moments, f"{path}.{key}".lstrip(".")) for key, part in inner])
    if isinstance(space, gym.Discrete):
        return np.eye(space.n)[int(value)]
    if isinstance(space, gym.MultiDiscrete):
        return np.concatenate([np.eye(n)[i] for n, i in zip(space.nvec, value, strict=True)])
    flat, name = np.asarray(value, np.float64).reshape(-1), path or "all"
    if f"{name}.mean" in moments:
        return np.clip((flat - moments[f"{name}.mean"]) * moments[f"{name}.scale"], -10, 10)
    return flat


def part_of(weights: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The weights whose names begin with `name.`, without that."""
    return {key.removeprefix(f"{name}."): x for key, x in weights.items() if key.startswith(f"{name}.")}


def layer(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    """One dense layer, noisy or normalised where it has weights for that."""
    if f"{name}.renorm_scale" in w:  # by the running statistics
        x = (x - w[f"{name}.renorm_mean"]) / np.sqrt(w[f"{name}.renorm_variance"] + 1e-3)
        x = x * w[f"{name}.renorm_scale"] + w[f"{name}.renorm_bias"]
    weight = w[f"{name}.weight"]
    bias = w.get(f"{name}.bias", np.zeros(weight.shape[1]))
    if f"{name}.spectral" in w:
        weight = weight / stretched(weight, w[f"{name}.spectral"])[0]
    if f"{name}.noise_in" in w:
        f_in, f_out = (np.sign(e) * np.sqrt(np.abs(e)) for e in (w[f"{name}.noise_in"], w[f"{name}.noise_out"]))
        weight = weight + w[f"{name}.weight_scale"] * np.outer(f_in, f_out)
        bias = bias + w[f"{name}.bias_scale"] * f_out
    y = np.array([bias[j] + np.sum(x * weight[:, j]) for j in range(len(bias))])
    if f"{name}.kept" in w:  # dropout
        y = y * w[f"{name}.kept"]
    if f"{name}.norm_scale" in w:
        y = (y - y.mean()) / math.sqrt(np.mean((y - y.mean()) ** 2) + 1e-6)
        y = y * w[f"{name}.norm_scale"] + w[f"{name}.norm_bias"]
    return y


def stretched(weight: np.ndarray, u: np.ndarray) -> tuple[float, np.ndarray]:
    """(the largest singular value by one step of the power method, the direction after it)."""
    v = weight @ u / np.linalg.norm(weight @ u)
    u = v @ weight / np.linalg.norm(v @ weight)
    return float(v @ weight @ u), u


def network(w: dict[str, np.ndarray], x: np.ndarray, activation: Any = relu, features: bool = False) -> np.ndarray:
    """A network's outputs for one input, or those of its last hidden layer. Weights of dueling networks: `value.*` and
    `advantage.*` beside those of the shared layers; the outputs are [actions, numbers of each]."""
    if "last.norm_scale" in w:
        return residual(w, x, activation)
    if "block0.dense0.scale" in w:
        return spherical(w, x)
    count = sum(name.count(".") == 1 and name.startswith("dense") and name.endswith(".weight") for name in w)
    dueling = any(name.startswith("value.") for name in w)
    for i in range(count):
        last = i == count - 1 and not dueling and not features
        x = layer(w, f"dense{i}", x) if last else activation(layer(w, f"dense{i}", x))
    if not dueling:
        return x
    streams = []
    for name in ("value", "advantage"):
        own = part_of(w, name)
        streams.append(layer(own, f"dense{count + 1}", activation(layer(own, f"dense{count}", x))))
    value, advantage = streams[0][None], streams[1].reshape(-1, len(streams[0]))
    return value + advantage - advantage.mean(0, keepdims=True)


def residual(w: dict[str, np.ndarray], x: np.ndarray, activation: Any) -> np.ndarray:
    """Outputs of a network of residual blocks with layer normalisation before each, and before the outputs."""

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * w[f"{name}.norm_scale"] + w[f"{name}.norm_bias"]

    x, i = layer(w, "dense0", x), 0
    while f"block{i}.norm_scale" in w:
        y = activation(layer(w, f"block{i}.dense0", norm(f"block{i}", x)))
        x, i = x + layer(w, f"block{i}.dense1", y), i + 1
    return layer(w, "dense1", norm("last", x))


def spherical(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Outputs of a network on the unit hypersphere."""
    x = unit(unit(np.append(x, 3.0)) @ w["dense0.weight"] * w["dense0.scale"])
    blocks = sum(name.endswith("dense0.scale") for name in w) - 1
    for i in range(blocks):
        y = relu(x @ w[f"block{i}.dense0.weight"] * w[f"block{i}.dense0.scale"]) + 1e-8
        share = w[f"block{i}.dense1.scale"] * math.sqrt(len(x)) / (blocks + 1)
        x = unit((1 - share) * x + share * unit(y @ w[f"block{i}.dense1.weight"]))
    return layer(w, "dense2", x @ w["dense1.weight"] * w["dense1.scale"])


def unit(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def members(w: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The weights of each network of an ensemble."""
    each = range(len(w["dense0.weight"]))
    return [{name: x[i].reshape(-1) if x.shape[1] == 1 else x[i] for name, x in w.items()} for i in each]


def in_training(w: dict[str, np.ndarray], inputs: list[np.ndarray]) -> tuple[dict, dict]:
    """(weights with which `network` gives what batch renormalisation does in a pass over these inputs, those that the
    network has after the pass)."""
    used, after, x = dict(w), dict(w), np.array(inputs)
    for i in range(sum(name.endswith("renorm_mean") for name in w)):
        mean, variance, passes = (f"dense{i}.renorm_{part}" for part in ("mean", "variance", "passes"))
        own, deviation = x.mean(0), np.sqrt(x.var(0) + 1e-3)
        running, scale, shift = np.sqrt(w[variance] + 1e-3), 1.0, 0.0
        if w[passes] >= 100_000:
            scale = np.clip(deviation / running, 1 / 3, 3)
            shift = np.clip((own - w[mean]) / running, -5, 5)
        used[mean], used[variance] = own - shift * deviation / scale, (deviation / scale) ** 2 - 1e-3
        after[mean] = 0.99 * w[mean] + 0.01 * own
        after[variance] = 0.99 * w[variance] + 0.01 * x.var(0)
        after[passes] = w[passes] + 1
        x = np.array([relu(layer(used, f"dense{i}", row)) for row in x])
    return used, after


def gru(w: dict[str, np.ndarray], x: np.ndarray, state: np.ndarray, activation: Any = relu) -> Any:
    """(outputs, next state) of a recurrent network with a GRU for one observation."""
    n, x = len(state), network(part_of(w, "before"), x, activation, features=True)
    given = x @ w["cell.input.weight"] + w["cell.input.bias"]
    kept = state @ w["cell.memory.weight"] + w["cell.memory.bias"]
    reset, update = sigmoid(given[:n] + kept[:n]), sigmoid(given[n : 2 * n] + kept[n : 2 * n])
    new = np.tanh(given[2 * n :] + reset * kept[2 * n :])
    state = (1 - update) * new + update * state
    return network(part_of(w, "after"), state, activation), state


# Distributions of one action


class Choice:
    """One of several choices, of which a mask allows some."""

    def __init__(self, logits: np.ndarray, mask: np.ndarray | None = None):
        weight = np.exp(logits - logits.max()) * (1.0 if mask is None else mask)
        self.p = weight / weight.sum()

    def log_prob(self, action: Any) -> float:
        return math.log(self.p[int(action)])

    def entropy(self) -> float:
        return -sum(p * math.log(p) for p in self.p if p > 0)

    def kl(self, other: Choice) -> float:
        return sum(p * math.log(p / q) for p, q in zip(self.p, other.p, strict=True) if p > 0)


class Several:
    """Independent choices."""

    def __init__(self, parts: list[Choice]):
        self.parts = parts

    def log_prob(self, action: Any) -> float:
        return sum(part.log_prob(a) for part, a in zip(self.parts, action, strict=True))

    def entropy(self) -> float:
        return sum(part.entropy() for part in self.parts)


class Normal:
    """Independent normal distributions, or tanh of such numbers."""

    def __init__(self, mean: np.ndarray, std: np.ndarray, squashed: bool = False):
        self.mean, self.std, self.squashed = mean, std, squashed

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, float]:
        """(an action, its log density)."""
        x = self.mean + self.std * noise
        if not self.squashed:
            return x, self._density(x)
        return np.tanh(x), self._density(x) + 2 * np.sum(np.log(np.cosh(x)))  # the slope of tanh is 1 / cosh**2

    def log_prob(self, action: np.ndarray) -> float:
        return self._density(action)

    def entropy(self) -> float:
        return sum(0.5 * math.log(2 * math.pi * math.e * s**2) for s in self.std)

    def kl(self, other: Normal) -> float:
        pairs = zip(self.mean, self.std, other.mean, other.std, strict=True)
        return sum(math.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5 for m, s, n, t in pairs)

    def _density(self, x: np.ndarray) -> float:
        pairs = zip(x, self.mean, self.std, strict=True)
        return sum(-0.5 * ((y - m) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi) for y, m, s in pairs)


def distribution(space: Any, x: np.ndarray, mask: Any, log_std: Any = None, bounded: bool = False) -> Any:
    """What a policy's outputs stand for. bounded: means are tanh of the outputs, and deviations bounded."""
    if isinstance(space, gym.Discrete):
        return Choice(x, mask)
    if isinstance(space, gym.MultiDiscrete):
        ends = np.cumsum(space.nvec)[:-1]
        masks = [None] * len(space.nvec) if mask is None else np.split(mask, ends)
        return Several([Choice(own, m) for own, m in zip(np.split(x, ends), masks, strict=True)])
    if isinstance(space, gym.MultiBinary):
        return Several([Choice(np.array([0.0, logit])) for logit in x])
    if bounded:
        x, log_std = np.tanh(x), np.clip(log_std, -5, 2)
    return Normal(x, np.exp(log_std))


# What is given


class Numbers:
    """weights, noise: by name, of one batch. c: hyperparameters. spaces: of observations and actions."""

    def __init__(self, weights: dict, noise: dict, c: SimpleNamespace, observation: Any, action: Any):
        self.w = {name: np.asarray(x, np.float64) for name, x in weights.items()}
        self.noise = {name: np.asarray(x, np.float64) for name, x in noise.items()}
        self.c, self.observation, self.action = c, observation, action
        self.moments = part_of(self.w, "normaliser")
        specs = getattr(c.network, "actor", c.network), getattr(c.network, "critic", c.network)
        self.act, self.act_critic = (
            np.tanh if getattr(spec, "before", spec).activation == "tanh" else relu for spec in specs
        )

    def see(self, observation: Any) -> np.ndarray:
        return vector(self.observation, observation, self.moments)

    def net(self, name: str, x: np.ndarray) -> np.ndarray:
        """Outputs of the network of this name."""
        return network(part_of(self.w, name), x, self.act)

    def value(self, name: str, x: np.ndarray) -> float:
        """The only output of a critic."""
        return float(network(part_of(self.w, name), x, self.act_critic)[0])

    def critics(self, name: str, *x: np.ndarray) -> list[np.ndarray]:
        """Outputs of each critic of an ensemble."""
        return [network(w, np.concatenate(x), self.act_critic) for w in members(part_of(self.w, name))]

    def qs(self, name: str, seen: np.ndarray, action: np.ndarray) -> list[float]:
        """The value of a Box action by each critic."""
        return [float(q[0]) for q in self.critics(name, seen, action)]


def tree_row(tree: Any, i: Any) -> Any:
    if isinstance(tree, dict):
        return {key: tree_row(part, i) for key, part in tree.items()}
    return tuple(tree_row(part, i) for part in tree) if isinstance(tree, tuple) else np.asarray(tree)[i]


class Row:
    """One step: o and next_o as networks read them, their masks, a, r, d (the discount), w (the weight), extras."""

    def __init__(self, given: Numbers, batch: Any, i: Any):
        observation, following = tree_row(batch.observation, i), None
        self.number, self.a, self.r = i, batch.action[i], float(batch.reward[i])
        self.d, self.w = float(batch.discount[i]), float(batch.weight[i])
        self.o, self.mask = (
            given.see(observation),
            observation.get("action_mask") if isinstance(observation, dict) else None,
        )
        self.raw = observation
        self.extras = {
            n: x[i] for n, x in batch.extras.items() if not isinstance(x, dict) and np.ndim(x) == np.ndim(batch.weight)
        }
        if batch.next_observation is not None:
            following = tree_row(batch.next_observation, i)
            self.next_o = given.see(following)
            self.next_mask = following.get("action_mask") if isinstance(following, dict) else None
        if isinstance(given.action, gym.Box):
            self.a = np.asarray(self.a, np.float64)


def rows(given: Numbers, batch: Any) -> list:
    if hasattr(batch, "rows"):
        return batch.rows
    return [Row(given, batch, i) for i in np.ndindex(*np.shape(batch.weight))]


def average(found: list, of: Any) -> float:
    """The mean of `of(row)`."""
    return sum(map(of, found)) / len(found)


def half_square(x: float) -> float:
    return 0.5 * x * x


def huber(x: float) -> float:
    return half_square(x) if abs(x) <= 1 else abs(x) - 0.5


def best(values: np.ndarray, mask: Any) -> int:
    allowed = range(len(values)) if mask is None else [i for i in range(len(values)) if mask[i]]
    return max(allowed, key=lambda i: values[i])


def batch_at(batch: Any) -> Any:
    """The batch with the weight of each sequence at each of its steps."""
    weight = np.broadcast_to(np.asarray(batch.weight)[:, None], np.shape(batch.reward))
    return SimpleNamespace(**{**vars(batch), "weight": weight})
