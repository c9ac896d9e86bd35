"""Models of the environment, in which policies act or are valued."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from slow_losses.given import (
    Choice,
    Normal,
    Numbers,
    Row,
    batch_at,
    members,
    network,
    part_of,
    sigmoid,
    softplus,
    tree_row,
    vector,
)  # fmt: skip


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
    replayed = [(i, t, mask[i, t] * float(batch.weight[i])) for i in range(n) for t in reversed(range(length))]
    for i, t, weight in replayed:
        goes_on = c.gae_lambda * mask[i, t + 1] if t + 1 < length else 0.0
        following = (1 - goes_on) * first[(t + 1) * n + i] + (goes_on * last if goes_on else 0.0)
        last = float(batch.reward[i, t] + batch.discount[i, t] * following)
        x = starts[i * (length + 1) + t][0]
        error = cross_entropy(last, of("critic", x)) + cross_entropy(number("critic_target", x), of("critic", x))
        critic += c.replay_coefficient * weight / sum(row[2] for row in replayed) * error
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


def pets(given: Numbers, batch: Any) -> Any:
    c, n = given.c, len(batch.weight)
    models = members(part_of(given.w, "model.network"))
    least, most = (given.w[f"model.{name}.value"] for name in ("least", "most"))
    loss, told, priorities = 0.01 * np.sum(most - least), np.zeros(3), []
    for i in range(n):
        row, lengths = Row(given, batch, i), []
        target = np.append(row.next_o - row.o, row.r)
        for j in range(c.n_models):
            out = network(models[j], np.append(row.o, np.clip(row.a, -1, 1)), lambda x: x * sigmoid(x))
            mean, log_variance, end = out[: len(target)], out[len(target) : -1], out[-1]
            log_variance = most - softplus(most - log_variance)
            log_variance = least + softplus(log_variance - least)
            error = (mean - target) ** 2
            likelihood = np.sum(error / np.exp(log_variance) + log_variance)
            ending = -math.log(sigmoid(end if row.d == 0 else -end))
            if given.noise["share"][i, j] > 0:  # half of the rows, twice
                loss += 2 * row.w * (likelihood + ending) / (n * c.n_models)
            told += np.array([likelihood, ending, np.mean(error)]) / (n * c.n_models)
            lengths.append(math.sqrt(np.sum(error)))
        priorities.append(np.mean(lengths))
    names = ("negative_log_likelihood", "termination", "prediction_error")
    return {"model": loss}, dict(zip(names, told, strict=True)), priorities
