"""Every algorithm's losses and metrics for one batch, in float64, one step after the other, as the papers say them.

Nothing of etude is imported. `Numbers` holds what is given: weights by name, noise, spaces and hyperparameters; a `Row`
is one step of a batch. Each function below returns (losses by name, metrics by name, errors of each row for priorities,
or None).
"""

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
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
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


# Values of actions


def noisy(given: Numbers, part: str, noise: str) -> dict[str, np.ndarray]:
    """The weights of a network, with the noise that a loss draws for its layers."""
    w = dict(part_of(given.w, part))
    drawn, start = given.noise[noise], 0
    for name in noise_order(w):
        w[name] = drawn[start : start + w[name].size].reshape(w[name].shape)
        start += w[name].size
    assert start == len(drawn)
    return w


def noise_order(w: dict) -> list[str]:
    """Layers from input to output, the value's before the advantages'; of each the noise of inputs, then of units."""
    names = [name.removesuffix(".noise_in") for name in w if name.endswith(".noise_in")]
    names.sort(key=lambda name: ((0, "") if "." not in name else (1, {"v": "0", "a": "1"}[name[0]]), name))
    return [f"{name}.{noise}" for name in names for noise in ("noise_in", "noise_out")]


def values_by(given: Numbers, part: str, noise: str, numbers: int = 1) -> Any:
    """The function from an observation to the values of all actions, [actions, numbers]."""
    w = noisy(given, part, noise)
    return lambda o: network(w, o, given.act).reshape(-1, numbers)


def dqn(given: Numbers, batch: Any) -> Any:
    found, errors = rows(given, batch), []
    q, target, online = (values_by(given, *x) for x in (("q", "q"), ("q_target", "q_target"), ("q", "next_q")))
    for row in found:
        following = target(row.next_o)[:, 0]
        chooser = online(row.next_o)[:, 0] if given.c.double else following
        row.q = q(row.o)[row.a, 0]
        errors.append(row.r + row.d * following[best(chooser, row.next_mask)] - row.q)
        row.loss = row.w * huber(errors[-1])
    return {"q": average(found, lambda row: row.loss)}, {"q_value": average(found, lambda row: row.q)}, errors


def pqn(given: Numbers, batch: Any) -> Any:
    found, q = rows(given, batch), lambda o: given.net("q", o)
    for row in found:
        row.q = q(row.o)[row.a]
        row.error = row.extras["return"] - row.q
    losses = {"q": average(found, lambda row: row.w * half_square(row.error))}
    return losses, {"q_value": average(found, lambda row: row.q)}, [row.error for row in found]


def bandit(given: Numbers, batch: Any, values: Any, features: Any) -> Any:
    """values, features: functions of an observation, of the expected rewards, and of what the regression reads."""
    found, inverse, b = rows(given, batch), given.w["regression.inverse"], given.w["regression.b"].copy()
    for row in found:
        row.error = row.r - values(row.o)[row.a]
        row.x = features(row.o)
        row.deviation = math.sqrt(row.x @ inverse[row.a] @ row.x)
    sums = [np.linalg.inv(each) for each in inverse]
    for row in found[: -(-given.c.train_every // given.c.gradient_steps)]:
        sums[row.a] = sums[row.a] + row.w * np.outer(row.x, row.x)
        b[row.a] += row.w * row.r * row.x
    given.after = {"regression.inverse": np.stack([np.linalg.inv(each) for each in sums]), "regression.b": b}
    loss = average(found, lambda row: row.error**2)
    return {"q": loss}, {"deviation": average(found, lambda row: row.deviation)}, None


def lin_ucb(given: Numbers, batch: Any) -> Any:
    weights = [a @ b for a, b in zip(given.w["regression.inverse"], given.w["regression.b"], strict=True)]
    return bandit(given, batch, lambda o: [x @ o for x in weights], lambda o: o)


def neural_ts(given: Numbers, batch: Any) -> Any:
    w, head = part_of(given.w, "q.features"), part_of(given.w, "q.head")
    hidden = lambda o: network(w, o, given.act, features=True)  # noqa: E731
    values = lambda o: network(head, hidden(o))  # noqa: E731
    return bandit(given, batch, values, lambda o: np.append(hidden(o), 1.0) / math.sqrt(len(hidden(o))))


def spectral_dqn(given: Numbers, batch: Any) -> Any:
    moved = [name for name in given.w if name.startswith("q.") and name.endswith(".spectral")]
    given.after = {n: stretched(given.w[n.replace("spectral", "weight")], given.w[n])[1] for n in moved}
    return dqn(given, batch)


def c51(given: Numbers, batch: Any) -> Any:
    found, n = rows(given, batch), given.c.atoms
    z, gap = np.linspace(given.c.v_min, given.c.v_max, n), (given.c.v_max - given.c.v_min) / (n - 1)
    q, target, online = (values_by(given, *x, n) for x in (("q", "q"), ("q_target", "q_target"), ("q", "next_q")))
    expected = lambda logits: np.array([Choice(each).p @ z for each in logits])  # noqa: E731
    for row in found:
        following = target(row.next_o)
        chooser = expected(online(row.next_o) if given.c.double else following)
        p, m = Choice(following[best(chooser, row.next_mask)]).p, np.zeros(n)
        for j in range(n):  # algorithm 1
            b = (min(max(row.r + row.d * z[j], z[0]), z[-1]) - z[0]) / gap
            low = min(int(b), n - 2)
            m[low] += p[j] * (low + 1 - b)
            m[low + 1] += p[j] * (b - low)
        own = Choice(q(row.o)[row.a])
        row.error, row.q = -sum(m[j] * math.log(own.p[j]) for j in range(n)), own.p @ z
    losses = {"q": average(found, lambda row: row.w * row.error)}
    return losses, {"q_value": average(found, lambda row: row.q)}, [row.error for row in found]


def qr_dqn(given: Numbers, batch: Any) -> Any:
    found, n = rows(given, batch), given.c.quantiles
    q, target, online = (values_by(given, *x, n) for x in (("q", "q"), ("q_target", "q_target"), ("q", "next_q")))
    for row in found:
        following = target(row.next_o)
        chooser = (online(row.next_o) if given.c.double else following).mean(1)
        samples = row.r + row.d * following[best(chooser, row.next_mask)]
        row.quantiles, row.loss = q(row.o)[row.a], 0.0
        for i in range(n):
            for sample in samples:
                u, tau = sample - row.quantiles[i], (i + 0.5) / n
                row.loss += abs(tau - (u < 0)) * huber(u) / n
        row.error = samples.mean() - row.quantiles.mean()
    losses = {"q": average(found, lambda row: row.w * row.loss)}
    return losses, {"q_value": average(found, lambda row: row.quantiles.mean())}, [row.error for row in found]


def r2d2(given: Numbers, batch: Any) -> Any:
    c, mask = given.c, batch.extras["mask"]
    total, counted, chosen, priorities = 0.0, float(mask.sum()), 0.0, []
    for i in range(len(mask)):
        steps = [Row(given, batch_at(batch), (i, t)) for t in range(mask.shape[1])]
        states = {part: np.asarray(batch.extras["recurrent_state"][i], np.float64) for part in ("q", "q_target")}
        for row in steps:
            row.q, states["q"] = gru(part_of(given.w, "q"), row.o, states["q"])
            _, states["q_target"] = gru(part_of(given.w, "q_target"), row.o, states["q_target"])
            online, target = (gru(part_of(given.w, part), row.next_o, states[part])[0] for part in ("q", "q_target"))
            row.next = target[best(online, row.next_mask)]
        errors = []
        for t, row in enumerate(steps):
            target, discount = 0.0, 1.0
            for k in range(t, t + c.n_step):  # n rewards, fewer where the sequence stops
                target, discount = target + discount * steps[k].r, discount * steps[k].d
                if k == t + c.n_step - 1 or k + 1 == len(steps) or not mask[i, k + 1]:
                    break
            target += discount * steps[k].next
            if mask[i, t]:
                errors.append(target - row.q[row.a])
                total += float(batch.weight[i]) * half_square(errors[-1])
                chosen += row.q[row.a]
        sizes = [abs(error) for error in errors]
        priorities.append(c.priority_mix * max(sizes) + (1 - c.priority_mix) * sum(sizes) / len(sizes))
    return {"q": total / counted}, {"q_value": chosen / counted}, priorities


def batch_at(batch: Any) -> Any:
    """The batch with the weight of each sequence at each of its steps."""
    weight = np.broadcast_to(np.asarray(batch.weight)[:, None], np.shape(batch.reward))
    return SimpleNamespace(**{**vars(batch), "weight": weight})


# Stochastic policies and critics of states


def policy_at(given: Numbers, part: str, row: Row, bounded: bool = False) -> Any:
    """The distribution of a policy, whose weights begin with `part.`, at one step."""
    if f"{part}.mean.dense0.weight" in given.w:  # noise that depends on the state
        z = network(part_of(given.w, f"{part}.features"), row.o, given.act, features=True)
        std = np.sqrt(np.exp(2 * given.w[f"{part}.log_std.value"]) @ z**2 + 1e-6)
        return Normal(given.net(f"{part}.mean", z), std, squashed=part == "actor")
    x = given.net(f"{part}.policy", row.o)
    return distribution(given.action, x, row.mask, given.w.get(f"{part}.log_std.value"), bounded)


def standardised(found: list, x: list[float]) -> list[float]:
    """With mean 0 and deviation 1, in which each row counts by its weight."""
    total = sum(row.w for row in found)
    mean = sum(row.w * own for row, own in zip(found, x, strict=True)) / total
    variance = sum(row.w * (own - mean) ** 2 for row, own in zip(found, x, strict=True)) / total
    return [(own - mean) / math.sqrt(variance) for own in x]


def clipped_surrogate(ratio: float, advantage: float, clip: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)


def actor_critic(given: Numbers, found: list, policy_loss: Any, **more: Any) -> Any:
    """Losses and metrics of steps with a `policy` and an `error` of the critic. policy_loss: of each."""
    c, weighted = given.c, {"policy_loss": policy_loss, "value_loss": lambda row: row.error}
    weighted |= {"entropy": lambda row: row.policy.entropy(), **more}
    metrics = {name: average(found, lambda row, of=of: row.w * of(row)) for name, of in weighted.items()}
    loss = metrics["policy_loss"] + c.value_coefficient * metrics["value_loss"]
    return {"model": loss - c.entropy_coefficient * metrics["entropy"]}, metrics, None


def a2c(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if given.c.normalize_advantage else advantages, strict=True
    ):
        row.policy, row.advantage = policy_at(given, "model", row), advantage
        row.error = (given.value("model.critic", row.o) - row.extras["return"]) ** 2
    return actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)


def trpo(given: Numbers, batch: Any) -> Any:
    """Of a step of no length."""
    found = rows(given, batch)
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, row.advantage in zip(found, standardised(found, advantages), strict=True):
        row.policy = policy_at(given, "actor", row)
        row.gain = math.exp(row.policy.log_prob(row.a) - row.extras["log_prob"]) * row.advantage
        row.error = (given.value("critic", row.o) - row.extras["return"]) ** 2
    losses = {
        "actor": average(found, lambda row: -row.w * row.gain),
        "critic": average(found, lambda row: row.w * row.error),
    }
    metrics = {"entropy": average(found, lambda row: row.w * row.policy.entropy())}
    return losses, metrics | {"actor_kl": 0.0}, None


def v_mpo(given: Numbers, batch: Any) -> Any:
    """Song et al. 2019, equations 3 to 5."""
    c, found = given.c, rows(given, batch)
    duals = {name.split(".")[1]: math.exp(x) for name, x in given.w.items() if name.startswith("dual.")}
    eta, metrics = duals["temperature"], {"entropy": 0.0}
    for row, row.advantage in zip(found, standardised(found, [row.extras["advantage"] for row in found]), strict=True):
        row.policy, row.before = policy_at(given, "actor", row), policy_at(given, "before", row)
    better = sorted(found, key=lambda row: row.advantage)[len(found) // 2 :]
    total = sum(row.w for row in better)
    psi = [row.w / total * math.exp(row.advantage / eta) for row in better]
    fit = -sum(x * row.policy.log_prob(row.a) for x, row in zip(psi, better, strict=True)) / sum(psi)
    dual = eta * (c.epsilon + math.log(sum(psi)))
    for name, multiplier in duals.items():
        if name == "temperature":
            continue

        def kl(row: Row, name: str = name) -> float:
            now, before = row.policy, row.before
            part = {"mean": lambda: Normal(now.mean, before.std), "std": lambda: Normal(before.mean, now.std)}
            return before.kl(part.get(name, lambda: now)())

        metrics[f"{name}_kl"] = divergence = average(found, lambda row, kl=kl: row.w * kl(row))
        metrics[f"{name}_multiplier"] = multiplier
        bound = c.epsilon_std if name == "std" else c.epsilon_mean
        fit += multiplier * divergence
        dual += multiplier * (average(found, lambda row: row.w) * bound - divergence)
    metrics |= {"entropy": average(found, lambda row: row.w * row.policy.entropy()), "temperature": eta}
    error = lambda row: (given.value("critic", row.o) - row.extras["return"]) ** 2  # noqa: E731
    return {"actor": fit, "dual": dual, "critic": average(found, lambda row: row.w * error(row))}, metrics, None


def ppo(given: Numbers, batch: Any, found: Any = None) -> Any:
    """found: rows that have their `policy` and `value` already."""
    c = given.c
    if found is None:
        found = rows(given, batch)
        for row in found:
            row.policy, row.value = policy_at(given, "model", row), given.value("model.critic", row.o)
    penalised, scale = getattr(c, "objective", "clip") == "penalty", 1.0
    if getattr(c, "normalize_value", False):
        mean, scale, _ = given.w["value_normaliser.moments"]
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if c.normalize_advantage else advantages, strict=True
    ):
        row.ratio = math.exp(row.policy.log_prob(row.a) - row.extras["log_prob"])
        row.kl, row.advantage = row.ratio - 1 - math.log(row.ratio), advantage
        value, target, old = row.value, row.extras["return"] / scale, row.extras["value"] / scale
        if scale != 1.0:
            value = value + mean / scale
        row.error = (value - target) ** 2
        if getattr(c, "value_clip_range", None) is not None:
            near = old + min(max(value - old, -c.value_clip_range), c.value_clip_range)
            row.error = max(row.error, (near - target) ** 2)
    more = {"approx_kl": lambda row: row.kl}
    if not penalised:
        more["clip_fraction"] = lambda row: abs(row.ratio - 1) > c.clip_range
        return actor_critic(given, found, lambda row: clipped_surrogate(row.ratio, row.advantage, c.clip_range), **more)
    beta = float(given.w["objective.kl_coefficient"])
    losses, metrics, _ = actor_critic(given, found, lambda row: beta * row.kl - row.ratio * row.advantage, **more)
    moments = {
        "return_mean": average(found, lambda row: row.w * row.extras["return"]),
        "return_squared_deviation": average(found, lambda row: row.w * (row.extras["return"] - mean) ** 2),
    }
    return losses, {**metrics, "kl_coefficient": beta, **moments}, None


def recurrent_ppo(given: Numbers, batch: Any) -> Any:
    found, first = [], batch.extras["first"]
    for i in range(len(first)):
        start = np.asarray(batch.extras["recurrent_state"][i], np.float64)
        states = dict(zip(("policy", "critic"), np.split(start, 2), strict=True))
        for t in range(first.shape[1]):
            row = Row(given, batch, (i, t))
            for part, state in states.items():
                state = np.zeros_like(state) if first[i, t] else state
                x, states[part] = gru(part_of(given.w, f"model.{part}"), row.o, state, given.act)
                if part == "policy":
                    row.policy = distribution(given.action, x, row.mask, given.w.get("model.log_std.value"))
            row.value = float(x[0])
            found.append(row)
    return ppo(given, batch, found)


def reinforce(given: Numbers, batch: Any) -> Any:
    found, c = rows(given, batch), given.c
    for row in found:
        row.policy = policy_at(given, "model", row)
        row.value = given.value("model.critic", row.o) if c.baseline else 0.0
        row.error = (row.value - row.extras["return"]) ** 2
    advantages = [row.extras["return"] - row.value for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if c.normalize_advantage else advantages, strict=True
    ):
        row.advantage = advantage
    losses, metrics, _ = actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)
    if not c.baseline:
        losses["model"] -= c.value_coefficient * metrics.pop("value_loss")
    return losses, metrics, None


def vtrace(given: Numbers, batch: Any, before: str) -> list:
    """Rows with V-trace targets `v` and advantages of the policy gradient, for the importance ratios of the policy
    whose weights begin with `before.`. Espeholt et al. 2018, equation 1, with c = lambda min(c_bar, ratio)."""
    c, found = given.c, []
    for i in range(len(batch.weight)):
        steps = [Row(given, batch, (i, t)) for t in range(batch.weight.shape[1])]
        for row in steps:
            row.policy, row.before = policy_at(given, "model", row), policy_at(given, before, row)
            row.value, row.next_value = given.value("model.critic", row.o), given.value("model.critic", row.next_o)
            row.log_ratio = row.before.log_prob(row.a) - row.extras["log_prob"]
            row.rho = min(c.rho_bar, math.exp(row.log_ratio))
            row.c = c.trace_lambda * min(c.c_bar, math.exp(row.log_ratio))
            row.delta = row.r + row.d * row.next_value - row.value
        for s, row in enumerate(steps):
            row.correction, product = 0.0, 1.0
            for later in steps[s:]:
                row.correction += product * later.rho * later.delta
                product *= later.d * later.c
                if not later.extras["goes_on"]:
                    break
        for row, following in zip(steps, [*steps[1:], None], strict=True):
            ahead = following.correction if following is not None and row.extras["goes_on"] else 0.0
            row.advantage = row.rho * (row.delta + row.d * c.trace_lambda * ahead)
            row.error = (row.value - (row.value + row.correction)) ** 2
        found += steps
    return found


def impala(given: Numbers, batch: Any) -> Any:
    found = vtrace(given, batch, "model")
    more = {
        "approx_kl": lambda row: math.exp(row.log_ratio) - 1 - row.log_ratio,
        "rho_clipped": lambda row: math.exp(row.log_ratio) > 1.001 * given.c.rho_bar,
    }
    losses, metrics, _ = actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)
    return losses, metrics | {name: average(found, of) for name, of in more.items()}, None


def appo(given: Numbers, batch: Any) -> Any:
    c, found = given.c, vtrace(given, batch, "before")
    advantages = [row.advantage for row in found]
    if c.normalize_advantage:
        advantages = list((np.array(advantages) - np.mean(advantages)) / np.std(advantages))
    for row, advantage in zip(found, advantages, strict=True):
        row.advantage = advantage
        now, before, acted = row.policy.log_prob(row.a), row.before.log_prob(row.a), row.extras["log_prob"]
        row.ratio = math.exp(now - acted) * min(math.exp(acted - before), 2.0)  # Luo et al. 2020
    loss = lambda row: clipped_surrogate(row.ratio, row.advantage, c.clip_range)  # noqa: E731
    losses, metrics, _ = actor_critic(given, found, loss, kl=lambda row: row.before.kl(row.policy))
    losses["model"] += c.kl_coefficient * metrics["kl"]
    metrics["clip_fraction"] = average(found, lambda row: abs(row.ratio - 1) > c.clip_range)
    return losses, metrics, None


# Imitation


def bc(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    if given.c.squared_error:
        error = lambda row: np.mean((np.tanh(given.net("actor.policy", row.o)) - row.a) ** 2)  # noqa: E731
        return {"actor": average(found, lambda row: row.w * error(row))}, {}, None
    for row in found:
        row.policy = policy_at(given, "actor", row, bounded=True)
    loss = average(found, lambda row: -row.w * row.policy.log_prob(row.a))
    return {"actor": loss}, {"policy_entropy": average(found, lambda row: row.policy.entropy())}, None


def marwil(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        row.policy, row.value = policy_at(given, "actor", row, bounded=True), given.value("critic", row.o)
        row.advantage = row.r + row.d * given.value("critic", row.next_o) - row.value
    typical = math.sqrt(average(found, lambda row: row.advantage**2))
    weight = lambda row: math.exp(given.c.beta * row.advantage / typical)  # noqa: E731
    losses = {
        "actor": average(found, lambda row: -row.w * weight(row) * row.policy.log_prob(row.a)),
        "critic": average(found, lambda row: row.w * half_square(row.advantage)),
    }
    metrics = {"policy_entropy": average(found, lambda row: row.policy.entropy())}
    metrics |= {"mean_value": average(found, lambda row: row.value), "advantage_size": typical}
    return losses, metrics, [row.advantage for row in found]


def gail(given: Numbers, batch: Any) -> Any:
    return adversarial(given, batch, lambda seen, row: _judge(given, seen, row))


def _executed(given: Numbers, a: Any) -> np.ndarray:
    """An action as the discriminator reads it: as the environment executes it."""
    return np.clip(a, -1, 1) if isinstance(given.action, gym.Box) else vector(given.action, a, {})


def _judge(given: Numbers, seen: np.ndarray, row: Any) -> float:
    return given.value("discriminator", np.concatenate([seen, _executed(given, row.a)]))


def airl(given: Numbers, batch: Any) -> Any:
    def logit(seen: np.ndarray, row: Any) -> float:
        """f - log pi with f = g + discount h(next) - h. Fu et al. 2018, section 6."""
        judged = seen if given.c.state_only else np.concatenate([seen, _executed(given, row.a)])
        g, h = given.value("discriminator.reward", judged), given.value("discriminator.potential", seen)
        f = g + row.d * given.value("discriminator.potential", row.next_o) - h
        return f - policy_at(given, "model", row).log_prob(row.a)

    return adversarial(given, batch, logit)


def adversarial(given: Numbers, batch: Any, logit: Any) -> Any:
    losses, metrics, _ = ppo(given, batch)
    expert = batch.extras["expert"]
    shown = SimpleNamespace(**{**vars(batch), **expert, "extras": {}})
    own, theirs = ([logit(row.o, row) for row in rows(given, steps)] for steps in (batch, shown))
    # Cross entropy: D is the probability that a step is the expert's.
    entropy = -sum(math.log(sigmoid(x)) for x in theirs) - sum(math.log(1 - sigmoid(x)) for x in own)
    losses["discriminator"] = entropy / (len(own) + len(theirs))
    metrics["discriminator_reward"] = float(np.mean(batch.reward))
    metrics["expert_accuracy"] = np.mean([x > 0 for x in theirs])
    metrics["policy_accuracy"] = np.mean([x < 0 for x in own])
    return losses, metrics, None


# Actors and critics of Box actions


def ensemble_loss(found: list) -> Any:
    """Half the squared errors to `target`, summed over the critics' values `qs`; their mean value; errors of rows."""
    loss = average(found, lambda row: row.w * sum(half_square(row.target - q) for q in row.qs))
    return (
        loss,
        average(found, lambda row: sum(row.qs) / len(row.qs)),
        [np.mean([abs(row.target - q) for q in row.qs]) for row in found],
    )


def squashed_at(given: Numbers, row: Row, following: bool = False) -> Normal:
    """SAC's policy at a step, or after it."""
    o = row.next_o if following else row.o
    if "actor.mean.dense0.weight" in given.w:
        return policy_at(given, "actor", SimpleNamespace(o=o))
    mean, log_std = np.split(given.net("actor", o), 2)
    return Normal(mean, np.exp(np.clip(log_std, -20, 2)), squashed=True)


def sac(given: Numbers, batch: Any, entropy_in_target: bool = True) -> Any:
    c, found = given.c, rows(given, batch)
    learned = "temperature.value" in given.w
    alpha = math.exp(given.w["temperature.value"]) if learned else c.temperature
    size = len(found[0].a)
    target_entropy = -size if getattr(c, "target_entropy", None) is None else c.target_entropy
    subset = getattr(c, "n_target_critics", None)
    for row in found:
        next_a, next_log_prob = squashed_at(given, row, True).sample(given.noise["next_action"][row.number])
        following = given.qs("critic_target", row.next_o, next_a)
        if subset is not None:  # REDQ: random critics, those with the smallest noise
            following = [following[i] for i in np.argsort(given.noise["subset"])[:subset]]
        bonus = alpha * next_log_prob if entropy_in_target else 0.0
        row.target = row.r + row.d * (min(following) - bonus)
        row.qs = given.qs("critic", row.o, row.a)
        row.own, row.log_prob = squashed_at(given, row).sample(given.noise["action"][row.number])
        own = given.qs("critic", row.o, row.own)
        row.actor = alpha * row.log_prob - (min(own) if subset is None else sum(own) / len(own))
    critic, q_value, errors = ensemble_loss(found)
    losses = {"critic": critic, "actor": average(found, lambda row: row.w * row.actor)}
    metrics = {"q_value": q_value, "policy_entropy": -average(found, lambda row: row.log_prob)}
    if learned:
        pull = average(found, lambda row: row.w * (row.log_prob + target_entropy))
        losses["temperature"], metrics["alpha"] = -math.log(alpha) * pull, alpha
    return losses, metrics, errors


def mpo(given: Numbers, batch: Any) -> Any:
    """Abdolmaleki et al. 2018: proposals of the target policy after each step, their shares before and after."""
    c, found = given.c, rows(given, batch)
    duals = {name.split(".")[1]: math.exp(x) for name, x in given.w.items() if name.startswith("dual.")}
    eta = duals["temperature"]
    metrics = dict.fromkeys(("policy_entropy", *(f"{name}_kl" for name in duals if name != "temperature")), 0.0)
    dual, fitted = 0.0, 0.0
    for row in found:
        if isinstance(given.action, gym.Discrete):
            policy, before = (Choice(given.net(part, row.next_o), row.next_mask) for part in ("actor", "actor_target"))
            proposed = [i for i in range(given.action.n) if before.p[i] > 0]
            prior, values = [before.p[i] for i in proposed], given.net("critic_target", row.next_o)
            q, parts, row.q = [values[i] for i in proposed], {"policy": policy}, given.net("critic", row.o)[row.a]
        else:
            split = [np.split(given.net(part, row.next_o), 2) for part in ("actor", "actor_target")]
            policy, before = (Normal(np.tanh(mean), np.exp(np.clip(x, -5, 2))) for mean, x in split)
            proposed = [before.sample(noise)[0] for noise in given.noise["action"][row.number]]
            prior = [1 / len(proposed)] * len(proposed)
            at = lambda part, o, a: given.value(part, np.concatenate([o, a]))  # noqa: E731
            q = [at("critic_target", row.next_o, np.clip(a, -1, 1)) for a in proposed]
            parts = {"mean": Normal(policy.mean, before.std), "std": Normal(before.mean, policy.std)}
            row.q = at("critic", row.o, row.a)
        row.error = row.r + row.d * sum(p * x for p, x in zip(prior, q, strict=True)) - row.q
        weight = [p * math.exp(x / eta) for p, x in zip(prior, q, strict=True)]
        dual += row.w * eta * (c.epsilon + math.log(sum(weight)))
        for name, part in parts.items():
            bound, kl = c.epsilon_std if name == "std" else c.epsilon_mean, before.kl(part)
            likelihood = sum(x * part.log_prob(a) for x, a in zip(weight, proposed, strict=True)) / sum(weight)
            fitted += row.w * (duals[name] * kl - likelihood)
            dual += row.w * duals[name] * (bound - kl)
            metrics[f"{name}_kl"] += kl / len(found)
        metrics["policy_entropy"] += policy.entropy() / len(found)
    losses = {"critic": average(found, lambda row: row.w * half_square(row.error))}
    losses |= {"actor": fitted / len(found), "dual": dual / len(found)}
    metrics |= {"q_value": average(found, lambda row: row.q), "temperature": eta}
    metrics |= {f"{name}_multiplier": x for name, x in duals.items() if name != "temperature"}
    return losses, metrics, [row.error for row in found]


def edac(given: Numbers, batch: Any) -> Any:
    losses, metrics, errors = sac(given, batch)

    def similarity(row: Row) -> float:
        gradients = []
        for w in members(part_of(given.w, "critic")):
            q = lambda a, w=w: network(w, np.concatenate([row.o, a]))[0]  # noqa: E731
            steps = 1e-6 * np.eye(len(row.a))
            gradient = np.array([(q(row.a + e) - q(row.a - e)) / 2e-6 for e in steps])
            gradients.append(gradient / np.linalg.norm(gradient))
        n = len(gradients)
        return sum(gradients[i] @ gradients[j] for i in range(n) for j in range(n) if i != j) / (n - 1)

    metrics["gradient_similarity"] = average(rows(given, batch), lambda row: row.w * similarity(row))
    losses["critic"] += 0.5 * given.c.diversity * metrics["gradient_similarity"]
    return losses, metrics, errors


def droq(given: Numbers, batch: Any) -> Any:
    """SAC's losses of each row with the units that it drops."""
    found = []
    for row in rows(given, batch):
        own = Numbers(given.w, given.noise, given.c, given.observation, given.action)
        example, rate = given.noise["dropout_of_examples"][row.number], given.c.network.critic.dropout
        for part, drawn in (("critic", "dropout"), ("critic_target", "dropout_of_target")):
            start = 0
            for i in range(len(given.c.network.critic.widths)):
                bias = given.w[f"{part}.dense{i}.bias"]
                phase = 16 * (example + given.noise[drawn][start : start + bias.size])
                kept = np.abs(phase - np.rint(phase)) <= (1 - rate) / 2
                own.w[f"{part}.dense{i}.kept"] = kept.reshape(bias.shape) / (1 - rate)
                start += bias.size
        found.append(sac(own, SimpleNamespace(rows=[row])))
    losses, metrics = ({key: np.mean([x[place][key] for x in found]) for key in found[0][place]} for place in (0, 1))
    return losses, metrics, [x[2][0] for x in found]


def crossq(given: Numbers, batch: Any) -> Any:
    found, alpha = rows(given, batch), math.exp(given.w["temperature.value"])
    used, actor = in_training(part_of(given.w, "actor"), [row.o for row in found])

    def policy(w: dict, o: np.ndarray) -> Normal:
        mean, log_std = np.split(network(w, o), 2)
        return Normal(mean, np.exp(np.clip(log_std, -20, 2)), squashed=True)

    for row in found:
        row.own, row.log_prob = policy(used, row.o).sample(given.noise["action"][row.number])
        row.next_a, row.next_log_prob = policy(actor, row.next_o).sample(given.noise["next_action"][row.number])
    here = [np.concatenate([row.o, row.a]) for row in found]
    there = [np.concatenate([row.next_o, row.next_a]) for row in found]
    passes = [in_training(w, here + there) for w in members(part_of(given.w, "critic"))]
    for row, now, following in zip(found, here, there, strict=True):
        row.qs = [network(w, now)[0] for w, _ in passes]
        row.target = min(network(w, following)[0] for w, _ in passes) - alpha * row.next_log_prob
        row.target = row.r + row.d * row.target
        own = min(network(w, np.concatenate([row.o, row.own]))[0] for _, w in passes)
        row.actor = alpha * row.log_prob - own
    critic, q_value, errors = ensemble_loss(found)
    given.after = {f"actor.{name}": x for name, x in actor.items()}
    for name, x in part_of(given.w, "critic").items():
        given.after[f"critic.{name}"] = np.stack([w[name].reshape(x.shape[1:]) for _, w in passes])
    losses = {"critic": critic, "actor": average(found, lambda row: row.w * row.actor)}
    pull = average(found, lambda row: row.w * (row.log_prob - len(found[0].a)))
    losses["temperature"] = -math.log(alpha) * pull
    entropy = -average(found, lambda row: row.log_prob)
    return losses, {"q_value": q_value, "policy_entropy": entropy, "alpha": alpha}, errors


def tqc(given: Numbers, batch: Any) -> Any:
    losses, metrics, _ = sac(given, batch)
    c, found, alpha = given.c, rows(given, batch), math.exp(given.w["temperature.value"])
    kept = c.n_critics * (c.quantiles - c.dropped)
    for row in found:
        next_a, next_log_prob = squashed_at(given, row, True).sample(given.noise["next_action"][row.number])
        pooled = sorted(z for member in given.critics("critic_target", row.next_o, next_a) for z in member)[:kept]
        samples, row.critics = [row.r + row.d * (z - alpha * next_log_prob) for z in pooled], 0.0
        members = given.critics("critic", row.o, row.a)
        for member in members:
            for i, z in enumerate(member):
                tau = (2 * i + 1) / (2 * c.quantiles)
                errors = [abs(tau - (y < z)) * huber(y - z) for y in samples]
                row.critics += sum(errors) / (kept * c.quantiles)
        row.q = np.mean(members)
        row.error = np.mean(samples) - row.q
        own, log_prob = squashed_at(given, row).sample(given.noise["action"][row.number])
        row.actor = alpha * log_prob - np.mean(given.critics("critic", row.o, own))
    losses["critic"] = average(found, lambda row: row.w * row.critics)
    losses["actor"] = average(found, lambda row: row.w * row.actor)
    metrics["q_value"] = average(found, lambda row: row.q)
    return losses, metrics, [row.error for row in found]


def dreamer_v3(given: Numbers, batch: Any) -> Any:
    c, mask, discrete = given.c, batch.extras["mask"], isinstance(given.action, gym.Discrete)
    n, length = mask.shape
    actions, values = given.action.n if discrete else given.action.shape[0], np.linspace(-c.largest, c.largest, c.bins)
    softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()  # noqa: E731
    of = lambda name, *x: network(part_of(given.w, name), np.concatenate(x))  # noqa: E731
    symlog = lambda x: np.sign(x) * np.log(np.abs(x) + 1)  # noqa: E731

    def seen(space: Any, value: Any) -> Any:
        if isinstance(space, gym.Dict):
            return {key: seen(space[key], part) for key, part in value.items()}
        if isinstance(space, gym.Tuple):
            return tuple(seen(inner, part) for inner, part in zip(space.spaces, value, strict=True))
        return symlog(np.float64(value)) if isinstance(space, gym.Box) else value

    def chosen(p: np.ndarray, noise: float) -> np.ndarray:
        place = 16 * noise + 0.5 - np.rint(16 * noise)
        return np.eye(len(p))[int(np.sum(np.cumsum(p) <= place))]

    mixed = lambda x: 0.99 * softmax(x) + 0.01 / len(x)  # noqa: E731
    latents = lambda x: [mixed(part) for part in np.split(x, c.latents)]  # noqa: E731
    drawn = lambda p, noise: np.concatenate(list(map(chosen, p, noise)))  # noqa: E731
    encoded = lambda a: np.eye(actions)[int(a)] if discrete else np.asarray(a, np.float64)  # noqa: E731
    kl = lambda ps, qs: sum(np.sum(p * np.log(p / q)) for p, q in zip(ps, qs, strict=True))  # noqa: E731

    def cell(h: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
        reset, new, update = np.split(of("model.gates", h, z, a if discrete else np.clip(a, -1, 1)), 3)
        update = sigmoid(update - 1)
        return update * np.tanh(sigmoid(reset) * new) + (1 - update) * h

    def policy(x: np.ndarray) -> Any:
        found = of("actor", x)
        if discrete:
            allowed = of("model.mask", x)
            return Choice(np.log(mixed(found)), allowed >= min(allowed.max(), 0))
        return Normal(np.tanh(found[:actions]), 0.1 + 0.9 * sigmoid(found[actions:] + 2))

    def act(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return chosen(policy(x).p, noise[0]) if discrete else policy(x).sample(noise)[0]

    def number(name: str, x: np.ndarray) -> float:
        mean = softmax(of(name, x)) @ values
        return math.copysign(math.exp(abs(mean)) - 1, mean)

    def cross_entropy(x: float, logits: np.ndarray) -> float:
        place = np.clip(symlog(x), -c.largest, c.largest)
        share = np.maximum(1 - np.abs(values - place) / (values[1] - values[0]), 0)  # of the two neighbours
        return -share @ np.log(softmax(logits))

    names = ("reconstruction", "dynamics", "representation", "reward", "termination", *(("mask",) if discrete else ()))
    metrics = dict.fromkeys(names, 0.0)
    counted, priorities, starts = 0.0, [], []
    for i in range(n):
        steps = [(tree_row(batch.observation, (i, 0)), None)]
        steps += [(tree_row(batch.next_observation, (i, t)), t) for t in range(length)]
        state = np.zeros(c.units + c.latents * c.classes + actions)
        state = np.float64(batch.extras["recurrent_state"][i]) if c.stored_state else state
        h, z, a = np.split(state, [c.units, c.units + c.latents * c.classes])
        sizes = []
        for k, (observation, t) in enumerate(steps):
            a = a if t is None else encoded(batch.action[i, t])
            o = vector(given.observation, seen(given.observation, observation), {})
            h = cell(h, z, a)
            posterior, prior = latents(of("model.posterior", h, of("model.encoder", o))), latents(of("model.prior", h))
            z = drawn(posterior, given.noise["latent"][i, k])
            x = np.concatenate([h, z])
            divergence = max(kl(posterior, prior), c.free_nats)
            step = {"reconstruction": np.sum((of("model.decoder", x) - o) ** 2)}
            step |= {"dynamics": divergence, "representation": divergence, "reward": 0.0, "termination": 0.0}
            if discrete:
                allowed = zip(of("model.mask", x), observation["action_mask"], strict=True)
                step["mask"] = -sum(math.log(sigmoid(y if ok else -y)) for y, ok in allowed)
            if t is not None:
                ending = float(of("model.termination", x)[0])
                step["reward"] = cross_entropy(float(batch.reward[i, t]), of("model.reward", x))
                step["termination"] = -math.log(sigmoid(-ending if batch.discount[i, t] > 0 else ending))
            weight = mask[i, 0 if t is None else t]
            for name in metrics:
                metrics[name] += float(batch.weight[i]) * weight * step[name]
            counted += weight
            if weight:
                sizes.append(sum(step.values()) - (1 - c.representation_coefficient) * step["representation"])
            going = 1.0 if t is None or batch.discount[i, t] > 0 else 0.0
            starts.append((x, weight * going * float(batch.weight[i]), i, k))
        priorities.append(0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes))
    order = [starts[i * (length + 1) + k] for k in range(length + 1) for i in range(n)]  # time first
    rows_of_noise = {name: x.reshape(-1, *x.shape[2:]) for name, x in given.noise.items()}
    total = sum(start[1] for start in starts) * c.horizon
    actor, critic, returns, first, entropies = 0.0, 0.0, [], [], []
    for j, (x, weight, _, _) in enumerate(order):
        dream, a = [(x, act(x, rows_of_noise["action"][j, 0]))], None
        for t in range(c.horizon):
            (x, a), split = dream[-1], c.units
            h = cell(x[:split], x[split:], a)
            x = np.concatenate([h, drawn(latents(of("model.prior", h)), rows_of_noise["imagined"][j, t])])
            dream.append((x, act(x, rows_of_noise["action"][j, t + 1])))
        value = [number("critic", x) for x, _ in dream]
        discounts = [c.gamma * sigmoid(-float(of("model.termination", x)[0])) for x, _ in dream[1:]]
        found, last = [], value[-1]
        for t in reversed(range(c.horizon)):
            following = (1 - c.gae_lambda) * value[t + 1] + c.gae_lambda * last
            last = number("model.reward", dream[t + 1][0]) + discounts[t] * following
            found.insert(0, last)
        first.append(found[0])
        returns += found
        for t in range(c.horizon):
            x, a = dream[t]
            log_prob, entropy = policy(x).log_prob(np.argmax(a) if discrete else a), policy(x).entropy()
            advantage = (found[t] - value[t]) / max(given.w["scale.value"], 1.0)
            actor -= weight / total * (advantage * log_prob + c.entropy_coefficient * entropy)
            logits = of("critic", x)
            slow = number("critic_target", x)
            critic += weight / total * (cross_entropy(found[t], logits) + cross_entropy(slow, logits))
            entropies.append(entropy)
            weight *= discounts[t]
    ordered, last = sorted(returns), len(returns) - 1
    metrics = {name: x / counted for name, x in metrics.items()}
    weights = {"dynamics": c.dynamics_coefficient, "representation": c.representation_coefficient}
    losses = {"model": sum(weights.get(name, 1.0) * x for name, x in metrics.items()), "actor": actor, "critic": critic}
    metrics["return_range"] = ordered[int(0.95 * last)] - ordered[int(0.05 * last)]
    return losses, metrics | {"policy_entropy": np.mean(entropies), "imagined_return": np.mean(first)}, priorities


def td_mpc2(given: Numbers, batch: Any) -> Any:
    c, mask = given.c, batch.extras["mask"]
    values = np.linspace(-c.largest, c.largest, c.bins)
    of = lambda name, *x: network(part_of(given.w, name), np.concatenate(x))  # noqa: E731
    softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()  # noqa: E731

    def latent(x: np.ndarray) -> np.ndarray:
        return np.concatenate([softmax(x[i : i + c.simplex_size]) for i in range(0, len(x), c.simplex_size)])

    def policy(z: np.ndarray) -> Normal:
        mean, x = np.split(of("policy", z), 2)
        return Normal(mean, np.exp(-10 + 6 * (np.tanh(x) + 1)), squashed=True)

    def number(logits: np.ndarray) -> float:
        mean = softmax(logits) @ values
        return math.copysign(math.exp(abs(mean)) - 1, mean)

    def cross_entropy(x: float, logits: np.ndarray) -> float:
        place = min(max(math.copysign(math.log(abs(x) + 1), x), -c.largest), c.largest)
        share = np.maximum(1 - np.abs(values - place) / (values[1] - values[0]), 0)  # of the two neighbours
        return -share @ np.log(softmax(logits))

    names = ("consistency", "reward", "termination", "critic")
    metrics, chosen = dict.fromkeys(names, 0.0), np.argsort(given.noise["subset"])[:2]
    first, policy_loss, priorities, entropies = [], 0.0, [], []
    for i in range(len(mask)):
        steps = [Row(given, batch_at(batch), (i, t)) for t in range(mask.shape[1])]
        z, errors = latent(of("model.encoder", steps[0].o)), []
        for t, row in enumerate(steps):
            weight = c.decay**t * row.w * mask[i, t] / len(steps)
            own, log_prob = policy(z).sample(given.noise["action"][i, t])
            q = np.mean([number(x) for x in given.critics("model.critic", z, own)])
            policy_loss += weight * (c.temperature * log_prob - q / max(given.w["scale.value"], 1.0))
            if t == 0:
                first.append(q)
                entropies.append(-log_prob)
            found, action = latent(of("model.encoder", row.next_o)), np.clip(row.a, -1, 1)
            next_a, _ = policy(found).sample(given.noise["next_action"][i, t])
            following = [number(x) for x in given.critics("critic_target", found, next_a)]
            target = row.r + row.d * min(following[j] for j in chosen)
            critics, reward = given.critics("model.critic", z, action), of("model.reward", z, action)
            if mask[i, t]:
                errors.append(abs(target - np.mean([number(x) for x in critics])))
            z = latent(of("model.dynamics", z, action))
            ending = float(of("model.termination", z)[0])
            step = {
                "consistency": np.mean((z - found) ** 2),
                "reward": cross_entropy(row.r, reward),
                "termination": -math.log(sigmoid(ending if row.d == 0 else -ending)),
                "critic": np.mean([cross_entropy(target, x) for x in critics]),
            }
            for name in names:
                metrics[name] += weight * step[name] / len(mask)
        priorities.append(0.9 * max(errors) + 0.1 * sum(errors) / len(errors))
    ordered, last = sorted(first), len(first) - 1
    losses = {
        "model": sum(getattr(c, f"{name}_coefficient") * metrics[name] for name in names),
        "policy": policy_loss / len(mask),
    }
    metrics["value_range"] = ordered[int(0.95 * last)] - ordered[int(0.05 * last)]
    return losses, metrics | {"q_value": np.mean(first), "policy_entropy": np.mean(entropies)}, priorities


def cql(given: Numbers, batch: Any) -> Any:
    if isinstance(given.action, gym.Discrete):
        return discrete_cql(given, batch)
    found, size = rows(given, batch), len(batch.action[0])
    losses, metrics, errors = sac(given, batch, entropy_in_target=False)

    def gap(row: Row) -> float:
        """Appendix F, a mean over the critics: the log of an integral, estimated from samples of three sources."""
        noise, total = {name: x[row.number] for name, x in given.noise.items()}, 0.0
        drawn = [(*squashed_at(given, row).sample(e), True) for e in noise["here"]]
        drawn += [(*squashed_at(given, row, True).sample(e), True) for e in noise["after"]]
        square = np.sum(noise["uniform"] ** 2, 0)  # of two normal numbers: exponential, its exp uniform
        drawn += [(1 - 2 * np.exp(-0.5 * x), -size * math.log(2), False) for x in square]
        for i, q in enumerate(given.qs("critic", row.o, row.a)):
            weights = []
            for action, log_prob, own in drawn:
                value = given.qs("critic", row.o, action)[i]
                if own and "return" in row.extras:  # Cal-QL: not below the recorded return
                    value = max(value, row.extras["return"])
                weights.append(math.exp(value - log_prob))
            total += math.log(sum(weights) / len(weights)) - q
        return total / 2

    metrics["gap"] = average(found, lambda row: row.w * gap(row))
    return _conservative(given, losses, metrics, errors, 2)


def _conservative(given: Numbers, losses: dict, metrics: dict, errors: list, critics: int) -> Any:
    alpha = math.exp(given.w["weight.value"]) if "weight.value" in given.w else given.c.cql_alpha
    losses["critic"] += critics * alpha * metrics["gap"]
    if "weight.value" in given.w:
        losses["weight"], metrics["cql_alpha"] = alpha * (given.c.target_gap - metrics["gap"]), alpha
    return losses, metrics, errors


def discrete_cql(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        q, online, target = (
            given.net("critic", row.o),
            given.net("critic", row.next_o),
            given.net("critic_target", row.next_o),
        )
        row.q = q[row.a]
        row.error = row.r + row.d * target[best(online, row.next_mask)] - row.q
        row.gap = math.log(sum(math.exp(q[i]) for i in range(len(q)) if row.mask is None or row.mask[i])) - row.q
    losses = {"critic": average(found, lambda row: row.w * huber(row.error))}
    metrics = {"q_value": average(found, lambda row: row.q), "gap": average(found, lambda row: row.w * row.gap)}
    return _conservative(given, losses, metrics, [row.error for row in found], 1)


def discrete_sac(given: Numbers, batch: Any) -> Any:
    c, found, n = given.c, rows(given, batch), given.action.n
    alpha = math.exp(given.w["temperature.value"]) if "temperature.value" in given.w else c.temperature

    def soft_value(qs: list, policy: Choice) -> float:
        return sum(p * (min(q[i] for q in qs) - alpha * math.log(p)) for i, p in enumerate(policy.p) if p > 0)

    for row in found:
        row.policy = Choice(given.net("actor", row.o), row.mask)
        following = Choice(given.net("actor", row.next_o), row.next_mask)
        row.target = row.r + row.d * soft_value(given.critics("critic_target", row.next_o), following)
        row.all = given.critics("critic", row.o)
        row.qs = [q[row.a] for q in row.all]
        row.actor = -soft_value(row.all, row.policy)
    critic, _, errors = ensemble_loss(found)
    losses = {"critic": critic, "actor": average(found, lambda row: row.w * row.actor)}
    metrics = {"q_value": average(found, lambda row: np.mean(row.all))}
    metrics["policy_entropy"] = average(found, lambda row: row.policy.entropy())
    if c.learn_temperature:
        allowed = lambda row: n if row.mask is None else sum(row.mask)  # noqa: E731
        pull = average(found, lambda row: row.w * (0.6 * math.log(allowed(row)) - row.policy.entropy()))
        losses["temperature"], metrics["alpha"] = -math.log(alpha) * pull, alpha
    return losses, metrics, errors


def smoothed(given: Numbers, row: Row) -> np.ndarray:
    """TD3's target action."""
    reach = given.c.target_noise_clip
    noise = np.clip(given.c.target_noise * given.noise["target"][row.number], -reach, reach)
    return np.clip(np.tanh(given.net("actor_target", row.next_o)) + noise, -1, 1)


def ddpg(given: Numbers, batch: Any) -> Any:
    found, q = rows(given, batch), lambda part, o, a: given.value(part, np.concatenate([o, a]))
    for row in found:
        row.target = row.r + row.d * q("critic_target", row.next_o, np.tanh(given.net("actor_target", row.next_o)))
        row.qs, row.own = [q("critic", row.o, row.a)], np.tanh(given.net("actor", row.o))
    critic, q_value, errors = ensemble_loss(found)
    losses = {"critic": critic, "actor": average(found, lambda row: -row.w * q("critic", row.o, row.own))}
    return losses, {"q_value": q_value, "saturation": average(found, lambda row: np.abs(row.own).mean())}, errors


def td3(given: Numbers, batch: Any) -> Any:
    losses, metrics, errors, found = twin_deterministic(given, batch)
    losses["actor"] = average(found, lambda row: -row.w * row.own_qs[0])
    metrics["saturation"] = average(found, lambda row: np.abs(row.own).mean())
    return losses, metrics, errors


def td3_bc(given: Numbers, batch: Any) -> Any:
    losses, metrics, errors, found = twin_deterministic(given, batch)
    size = average(found, lambda row: abs(row.own_qs[0]))
    error = lambda row: np.mean((row.own - row.a) ** 2)  # noqa: E731
    losses["actor"] = average(found, lambda row: row.w * (error(row) - given.c.alpha / size * row.own_qs[0]))
    metrics["action_error"] = average(found, error)
    return losses, metrics, errors


def rebrac(given: Numbers, batch: Any) -> Any:
    distance = lambda one, other: np.sum((one - other) ** 2)  # noqa: E731

    def penalty(row: Row, action: np.ndarray) -> float:
        following = np.asarray(batch.extras["next_action"][row.number], np.float64)
        return given.c.critic_penalty * row.extras["next_recorded"] * distance(action, following)

    losses, metrics, errors, found = twin_deterministic(given, batch, penalty)
    size = average(found, lambda row: abs(min(row.own_qs)))
    actor = lambda row: given.c.actor_penalty * distance(row.own, row.a) - min(row.own_qs) / size  # noqa: E731
    losses["actor"] = average(found, lambda row: row.w * actor(row))
    metrics["action_distance"] = average(found, lambda row: distance(row.own, row.a))
    return losses, metrics, errors


def twin_deterministic(given: Numbers, batch: Any, penalty: Any = lambda row, action: 0.0) -> Any:
    """The critics' loss of TD3, its metric and errors, and rows with the policy's `own` action and its values."""
    found = rows(given, batch)
    for row in found:
        next_a = smoothed(given, row)
        following = min(given.qs("critic_target", row.next_o, next_a)) - penalty(row, next_a)
        row.target, row.qs = row.r + row.d * following, given.qs("critic", row.o, row.a)
        row.own = np.tanh(given.net("actor", row.o))
        row.own_qs = given.qs("critic", row.o, row.own)
    critic, q_value, errors = ensemble_loss(found)
    return {"critic": critic}, {"q_value": q_value}, errors, found


def awac(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        noise = {name: x[row.number] for name, x in given.noise.items()}
        row.policy, row.qs = policy_at(given, "actor", row, bounded=True), given.qs("critic", row.o, row.a)
        following = policy_at(given, "actor", SimpleNamespace(o=row.next_o, mask=None), bounded=True)
        next_a = np.clip(following.sample(noise["next_action"])[0], -1, 1)
        row.target = row.r + row.d * min(given.qs("critic_target", row.next_o, next_a))
        value = min(given.qs("critic", row.o, np.clip(row.policy.sample(noise["action"])[0], -1, 1)))
        row.weight = min(math.exp(given.c.beta * (min(row.qs) - value)), 100.0)
    critic, q_value, errors = ensemble_loss(found)
    losses = {"critic": critic, "actor": average(found, lambda row: -row.w * row.weight * row.policy.log_prob(row.a))}
    metrics = {"q_value": q_value, "imitation_weight": average(found, lambda row: row.weight)}
    return losses, {**metrics, "policy_entropy": average(found, lambda row: row.policy.entropy())}, errors


def xql(given: Numbers, batch: Any) -> Any:
    def gumbel(x: float) -> float:
        z = min(x / given.c.gumbel_temperature, given.c.gumbel_clip)
        return math.exp(z) - z - 1

    return iql(given, batch, gumbel)


def iql(given: Numbers, batch: Any, regression: Any = None) -> Any:
    c, found = given.c, rows(given, batch)
    regression = regression or (lambda x: abs(c.expectile - (x < 0)) * x**2)

    def qs(part: str, row: Row) -> list[float]:
        if isinstance(given.action, gym.Box):
            return given.qs(part, row.o, row.a)
        return [q[row.a] for q in given.critics(part, row.o)]

    for row in found:
        row.value = given.value("state_value", row.o)
        row.target, row.qs = row.r + row.d * given.value("state_value", row.next_o), qs("critic", row)
        row.advantage = min(qs("critic_target", row)) - row.value
        row.weight = min(math.exp(c.beta * row.advantage), 100.0)
        row.log_prob = policy_at(given, "actor", row, bounded=True).log_prob(row.a)
    critic, q_value, errors = ensemble_loss(found)
    losses = {
        "state_value": average(found, lambda row: row.w * regression(row.advantage)),
        "critic": critic,
        "actor": average(found, lambda row: -row.w * row.weight * row.log_prob),
    }
    metrics = {"mean_value": average(found, lambda row: row.value), "q_value": q_value}
    return losses, {**metrics, "imitation_weight": average(found, lambda row: row.weight)}, errors


# Several agents


def spaces_of(given: Numbers) -> dict[str, tuple[Any, Any]]:
    """The spaces of each agent: of its observations, and of its actions."""
    return {name: (part, given.action[name]) for name, part in sorted(given.observation["agents"].spaces.items())}


def actions_of(given: Numbers, joint: np.ndarray) -> dict[str, Any]:
    """Each agent's own part of a joint action."""
    found, start = {}, 0
    for name, (_, space) in spaces_of(given).items():
        if isinstance(space, gym.Discrete):
            found[name], start = int(joint[start]), start + 1
        else:
            found[name], start = np.asarray(joint[start : start + len(space.low)], np.float64), start + len(space.low)
    return found


def there(observation: Any) -> np.ndarray:
    """1 for each agent that acts, 0 for one that waits or has ended."""
    return np.float64([status == 1 for status in observation["status"]])


def everything(given: Numbers, observation: Any) -> np.ndarray:
    """What a centralised critic reads: the observations of all agents, or the global state."""
    part = "state" if given.c.critic_reads == "state" else "agents"
    return vector(given.observation[part], observation[part], given.moments, part)


def steps_of(given: Numbers, batch: Any, policy: str) -> tuple[Numbers, list]:
    """(what is given to one policy, the steps at which its agents act). Each knows which `place` its agent has among
    those of the policy, and what all observed."""
    spaces, names, steps = spaces_of(given), given.driven[policy], []
    order = list(spaces)
    own = Numbers({}, {}, given.c, *spaces[names[0]])
    own.w, own.noise = part_of(given.w, policy), part_of(given.noise, policy)
    for place, name in enumerate(names):
        identity = np.eye(len(names))[place] if given.identity and len(names) > 1 else np.zeros(0)
        see = lambda o, name=name, one=identity: np.concatenate(  # noqa: E731
            [one, vector(spaces[name][0], o["agents"][name], given.moments, f"agents.{name}")]
        )
        for b in range(len(batch.weight)):
            if not batch.extras["active"][b, order.index(name)]:
                continue
            row = SimpleNamespace(joint=tree_row(batch.observation, b), number=(b, place), w=float(batch.weight[b]))
            row.o, row.a = see(row.joint), actions_of(given, batch.action[b])[name]
            row.r, row.d = (float(x[b, order.index(name)]) for x in (batch.reward, batch.discount))
            row.extras = {key: x[b, order.index(name)] for key, x in batch.extras.items()}
            row.mask, row.next_mask = masks = [None, None]
            raw = [row.joint["agents"][name]]
            if batch.next_observation is not None:
                following = tree_row(batch.next_observation, b)
                row.next_o, raw = see(following), [*raw, following["agents"][name]]
            masks[: len(raw)] = [each.get("action_mask") if isinstance(each, dict) else None for each in raw]
            row.mask, row.next_mask = masks
            steps.append(row)
    return own, steps


def independent(truth: Any) -> Any:
    """The losses of an algorithm for one agent, of each policy, over the steps at which its agents act."""

    def found(given: Numbers, batch: Any) -> Any:
        losses, metrics, errors = {}, {}, np.zeros(len(batch.weight))
        for policy in given.driven:
            own, steps = steps_of(given, batch, policy)
            its_losses, its_metrics, its_errors = truth(own, SimpleNamespace(rows=steps))
            losses |= {f"{policy}.{name}": x for name, x in its_losses.items()}
            metrics |= {f"{policy}.{name}": x for name, x in its_metrics.items()}
            for row, error in zip(steps, its_errors or [], strict=False):
                errors[row.number[0]] += abs(error) / len(spaces_of(given))
        return losses, metrics, errors

    return found


def mappo(given: Numbers, batch: Any) -> Any:
    losses, metrics = {}, {}
    for policy, names in given.driven.items():
        own, steps = steps_of(given, batch, policy)
        for row in steps:
            identity = np.eye(len(names))[row.number[1]] if len(names) > 1 else np.zeros(0)
            row.policy = policy_at(own, "model", row)
            seen = np.concatenate([identity, everything(given, row.joint), there(row.joint)])
            row.value = own.value("model.critic", seen)
        its_losses, its_metrics, _ = ppo(own, batch, steps)
        losses |= {f"{policy}.{name}": x for name, x in its_losses.items()}
        metrics |= {f"{policy}.{name}": x for name, x in its_metrics.items()}
    return losses, metrics, None


def maddpg(given: Numbers, batch: Any) -> Any:
    """Lowe et al. 2017, equations 5 and 6; choices by Gumbel-softmax, of which critics see the one-hot sample."""
    c, spaces, losses, metrics = given.c, spaces_of(given), {}, {}
    errors = np.zeros(len(batch.weight))

    def outputs(name: str, actor: str, observation: Any) -> tuple[np.ndarray, Any]:
        own = observation["agents"][name]
        seen = vector(spaces[name][0], own, given.moments, f"agents.{name}")
        return given.net(f"{name}.{actor}", seen), own.get("action_mask") if isinstance(own, dict) else None

    def drawn(name: str, x: np.ndarray, mask: Any, noise: np.ndarray) -> np.ndarray:
        if not isinstance(spaces[name][1], gym.Discrete):
            return np.tanh(x)
        gumbel = -np.log(0.5 * np.sum(noise**2, 0))  # of an exponential number, from two normal ones
        return np.eye(len(x))[best(x + gumbel, mask)]

    def target(name: str, observation: Any, noise: np.ndarray) -> np.ndarray:
        action = drawn(name, *outputs(name, "actor_target", observation), noise)
        if isinstance(spaces[name][1], gym.Discrete):
            return action
        return np.clip(action + np.clip(c.target_noise * noise, -c.target_noise_clip, c.target_noise_clip), -1, 1)

    def qs(name: str, critic: str, observation: Any, actions: dict[str, np.ndarray]) -> list[float]:
        here = there(observation)
        taken = np.concatenate([here[i] * actions[agent] for i, agent in enumerate(spaces)])
        return [float(q[0]) for q in given.critics(f"{name}.{critic}", everything(given, observation), taken, here)]

    for i, name in enumerate(spaces):
        found = []
        for b in np.flatnonzero(batch.extras["active"][:, i]):
            observation, following = tree_row(batch.observation, b), tree_row(batch.next_observation, b)
            taken = actions_of(given, batch.action[b])
            discrete = {agent: isinstance(space, gym.Discrete) for agent, (_, space) in spaces.items()}
            actions = {agent: np.eye(spaces[agent][1].n)[a] if discrete[agent] else a for agent, a in taken.items()}
            next_actions = {agent: target(agent, following, given.noise[f"{agent}.next_action"][b]) for agent in spaces}
            row = SimpleNamespace(w=float(batch.weight[b]), qs=qs(name, "critic", observation, actions))
            next_q = min(qs(name, "critic_target", following, next_actions))
            row.target = float(batch.reward[b, i]) + float(batch.discount[b, i]) * next_q
            x, mask = outputs(name, "actor", observation)
            own = {**actions, name: drawn(name, x, mask, given.noise[f"{name}.action"][b])}
            cost = c.policy_cost * np.mean(x**2 * (1 if mask is None else mask))
            row.actor = cost - qs(name, "critic", observation, own)[0]
            errors[b] += np.mean([abs(row.target - q) for q in row.qs]) / len(spaces)
            found.append(row)
        losses[f"{name}.critic"], metrics[f"{name}.q_value"], _ = ensemble_loss(found)
        losses[f"{name}.actor"] = average(found, lambda row: row.w * row.actor)
    return losses, metrics, errors


def qmix(given: Numbers, batch: Any) -> Any:
    """Rashid et al. 2018, equations 4 to 6; Sunehag et al. 2017 where values are summed."""
    c, spaces, found = given.c, spaces_of(given), []
    errors = np.zeros(len(batch.weight))

    def values(part: str, observation: Any) -> dict[str, np.ndarray]:
        q = {}
        for policy, names in given.driven.items():
            for place, name in enumerate(names):
                identity = np.eye(len(names))[place] if given.identity and len(names) > 1 else np.zeros(0)
                seen = vector(spaces[name][0], observation["agents"][name], given.moments, f"agents.{name}")
                q[name] = given.net(f"{policy}.{part}", np.concatenate([identity, seen]))
        return q

    def mixed(mixer: str, qs: np.ndarray, observation: Any) -> float:
        if c.mixer == "sum":
            return float(sum(qs))
        seen = np.concatenate([everything(given, observation), there(observation)])
        made = {name: given.net(f"{mixer}.{name}", seen) for name in ("weight", "bias", "last_weight", "last_bias")}
        hidden = np.array(made["bias"])
        for u in range(c.mixing_units):
            hidden[u] += sum(q * abs(made["weight"][i * c.mixing_units + u]) for i, q in enumerate(qs))
            hidden[u] = hidden[u] if hidden[u] > 0 else math.expm1(hidden[u])
        return float(sum(hidden * np.abs(made["last_weight"])) + made["last_bias"][0])

    for b in range(len(batch.weight)):
        active = batch.extras["active"][b]
        if not active.any():
            continue
        observation, following = tree_row(batch.observation, b), tree_row(batch.next_observation, b)
        q, next_q, online = values("q", observation), values("q_target", following), values("q", following)
        taken, chosen, best_next, here = actions_of(given, batch.action[b]), [], [], there(following)
        for i, name in enumerate(spaces):
            own = following["agents"][name]
            choice = best((online if c.double else next_q)[name], own.get("action_mask"))
            chosen.append(active[i] * q[name][taken[name]])
            best_next.append(here[i] * next_q[name][choice])
        row = SimpleNamespace(w=float(batch.weight[b]), q=mixed("mixer", np.array(chosen), observation))
        reward = np.mean([r for r, acts in zip(batch.reward[b], active, strict=True) if acts])
        discount = max(d for d, acts in zip(batch.discount[b], active, strict=True) if acts)
        errors[b] = row.error = reward + discount * mixed("mixer_target", np.array(best_next), following) - row.q
        found.append(row)
    loss = average(found, lambda row: row.w * half_square(row.error))
    return {"q": loss}, {"q_value": average(found, lambda row: row.q)}, errors
