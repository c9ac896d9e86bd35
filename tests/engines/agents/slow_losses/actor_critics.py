"""Actors, and critics of actions."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from slow_losses.given import (
    Choice,
    Normal,
    Numbers,
    Row,
    average,
    half_square,
    huber,
    in_training,
    members,
    network,
    part_of,
    rows,
    unit,
)
from slow_losses.policies import policy_at


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


def categorical_sac(given: Numbers, batch: Any) -> Any:
    losses, metrics, _ = sac(given, batch)
    c, found, alpha = given.c, rows(given, batch), math.exp(given.w["temperature.value"])
    atoms, apart = np.linspace(-c.v_max, c.v_max, c.atoms), 2 * c.v_max / (c.atoms - 1)
    softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()  # noqa: E731
    likely = lambda name, *x: [softmax(z) for z in given.critics(name, *x)]  # noqa: E731
    for row in found:
        next_a, next_log_prob = squashed_at(given, row, True).sample(given.noise["next_action"][row.number])
        following = min(likely("critic_target", row.next_o, next_a), key=lambda p: p @ atoms)
        target = np.zeros(c.atoms)
        for p, z in zip(following, atoms, strict=True):
            place = (np.clip(row.r + row.d * (z - alpha * next_log_prob), -c.v_max, c.v_max) + c.v_max) / apart
            low = min(int(place), c.atoms - 2)
            target[low] += p * (low + 1 - place)
            target[low + 1] += p * (place - low)
        now = likely("critic", row.o, row.a)
        row.critics, row.q = -sum(target @ np.log(p) for p in now), np.mean([p @ atoms for p in now])
        row.error = row.r + row.d * (following @ atoms - alpha * next_log_prob) - row.q
        own, row.log_prob = squashed_at(given, row).sample(given.noise["action"][row.number])
        row.actor = alpha * row.log_prob - min(p @ atoms for p in likely("critic", row.o, own))
    losses["critic"] = average(found, lambda row: row.w * row.critics)
    losses["actor"] = average(found, lambda row: row.w * row.actor)
    pull = average(found, lambda row: row.w * (row.log_prob - len(found[0].a) / 2))
    losses["temperature"] = -math.log(alpha) * pull
    metrics["q_value"] = average(found, lambda row: row.q)
    spheres = [name for name in given.w if name.startswith(("actor.", "critic.")) and name.endswith(".weight")]
    given.after = {name: unit(given.w[name], -2) for name in spheres}
    return losses, metrics, [row.error for row in found]
