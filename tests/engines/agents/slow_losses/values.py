"""Values of actions, and regressions of bandits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slow_losses.given import (
    Choice,
    Numbers,
    Row,
    average,
    batch_at,
    best,
    gru,
    half_square,
    huber,
    network,
    part_of,
    rows,
    stretched,
)


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
