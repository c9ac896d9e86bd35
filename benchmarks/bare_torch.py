"""Gradient steps in nothing but torch: eager with the fused Adam, or one compiled function of weights and moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import CLIP, ENTROPY, EPSILON, EVERY, LARGEST_NORM, RATE, TAU, VALUE_COST, Arrays, Case, weights
from torch.nn.functional import huber_loss, softplus
from torch.utils._pytree import tree_flatten, tree_map

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def mlp(layers: Any, x: Any, activation: Callable = torch.relu) -> Any:
    for w, b in layers[:-1]:
        x = activation(_affine(x, w, b))
    return _affine(x, *layers[-1])


def _affine(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x, w) if w.ndim == 2 else torch.matmul(x, w) + b


def dqn(params: Any, lagged: Any, batch: Any) -> Any:
    q = mlp(params["q"][0], batch["observation"]).gather(1, batch["action"][:, None])[:, 0]
    with torch.no_grad():
        next_q = mlp(lagged[0], batch["next_observation"]).amax(-1)
        target = batch["reward"] + batch["discount"] * next_q
    loss = (batch["weight"] * huber_loss(q, target, reduction="none")).mean()
    return {"q": loss}, (target - q).detach()


def ppo(params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic, log_std = params["model"]
    z = (batch["action"] - mlp(actor, batch["observation"], torch.tanh)) / log_std.exp()
    log_prob = (-0.5 * z**2 - log_std - HALF_LOG_TAU).sum(-1)
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - batch["log_prob"]).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    value = mlp(critic, batch["observation"], torch.tanh)[:, 0]
    entropy = (log_std + 0.5 + HALF_LOG_TAU).sum()
    total = policy + VALUE_COST * (value - batch["return"]) ** 2 - ENTROPY * entropy
    return {"model": (batch["weight"] * total).mean()}, None


def act(actor: Any, observation: Any, noise: Any) -> Any:
    mean, log_std = mlp(actor, observation).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    raw = mean + log_std.exp() * noise
    squash = 2 * (math.log(2) - raw - softplus(-2 * raw))
    return raw.tanh(), (-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash).sum(-1)


def judge(layers: Any, observation: Any, action: Any) -> Any:
    return mlp(layers, torch.cat([observation, action], -1))[..., 0]


def sac(params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = log_temperature.detach().exp()
    with torch.no_grad():
        next_action, next_log_prob = act(actor, batch["next_observation"], batch["next_noise"])
        next_q = judge(lagged[0], batch["next_observation"], next_action).amin(0) - temperature * next_log_prob
        target = batch["reward"] + batch["discount"] * next_q
    error = target - judge(critic, batch["observation"], batch["action"])
    action, log_prob = act(actor, batch["observation"], batch["noise"])
    lower = judge(critic, batch["observation"], action).amin(0)
    surplus = log_prob.detach() - action.shape[-1]
    return {
        "critic": 0.5 * (batch["weight"] * (error**2).sum(0)).mean(),
        "actor": (batch["weight"] * (temperature * log_prob - lower)).mean(),
        "temperature": -log_temperature * (batch["weight"] * surplus).mean(),
    }, error.detach().mean(0)


LOSSES = {"dqn": dqn, "ppo": ppo, "sac": sac}
FOLLOWED = {"dqn": "q", "ppo": None, "sac": "critic"}


def bare(case: Case, compiled: bool = False) -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy."""
    step = (_compiled if compiled else _eager)(case)

    def learn(batches: Arrays) -> Any:
        tensors = {name: torch.from_numpy(x) for name, x in batches.items()}
        found = [step({name: x[i] for name, x in tensors.items()}) for i in range(case.k)]
        scalars = torch.stack([scalar for scalar, _ in found]).mean(0).numpy()
        return scalars, None if found[0][1] is None else torch.stack([error for _, error in found]).numpy()

    return learn


def _first_weights(case: Case) -> Any:
    params = tree_map(torch.tensor, weights(case))
    return params, FOLLOWED[case.algorithm]


def _eager(case: Case) -> Callable:
    params, followed = _first_weights(case)
    params = tree_map(lambda w: w.requires_grad_(), params)
    lagged = tree_map(lambda w: w.detach().clone(), params[followed]) if followed else None
    groups = {name: tree_flatten(part)[0] for name, part in params.items()}
    optimizers = [torch.optim.Adam(g, RATE, eps=EPSILON[case.algorithm], fused=True) for g in groups.values()]
    pairs = list(zip(tree_flatten(lagged)[0], groups[followed], strict=True)) if followed else []
    losses, largest, t = LOSSES[case.algorithm], LARGEST_NORM[case.algorithm], 0

    def step(batch: Any) -> Any:
        nonlocal t
        t += 1
        scalars, error = losses(params, lagged, batch)
        left = len(groups)
        for name, group in groups.items():
            left -= 1
            for w, g in zip(group, torch.autograd.grad(scalars[name], group, retain_graph=left > 0), strict=True):
                w.grad = g
            if largest is not None:
                torch.nn.utils.clip_grad_norm_(group, largest)
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            if case.algorithm == "sac":
                for old, w in pairs:
                    old.lerp_(w, TAU)
            elif case.algorithm == "dqn" and t % EVERY == 0:
                for old, w in pairs:
                    old.copy_(w)
        return torch.stack([x.detach() for x in scalars.values()]), error

    return step


def _compiled(case: Case) -> Callable:
    params, followed = _first_weights(case)
    losses, largest = LOSSES[case.algorithm], LARGEST_NORM[case.algorithm]
    zeros = tree_map(torch.zeros_like, params)
    lagged = tree_map(torch.clone, params[followed]) if followed else None
    state = (params, lagged, zeros, tree_map(torch.clone, zeros), torch.zeros(()))

    def functional(state: Any, batch: Any) -> Any:
        params, lagged, first, second, t = state
        gradients, scalars, rest = {}, [], []
        for group in params:

            def own(part: Any, group: str = group) -> Any:
                found, error = losses({**params, group: part}, lagged, batch)
                return found[group], (found[group],) if error is None else (found[group], error)

            gradients[group], (scalar, *rest) = torch.func.grad(own, has_aux=True)(params[group])
            scalars.append(scalar)
        if largest is not None:
            norm = sum((g**2).sum() for g in tree_flatten(gradients)[0]).sqrt()
            factor = (largest / (norm + 1e-6)).clamp(max=1.0)
            gradients = tree_map(lambda g: g * factor, gradients)
        t = t + 1
        first = tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = tree_map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradients)
        rate, scale = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
        epsilon = EPSILON[case.algorithm]
        params = tree_map(lambda w, m, v: w - rate * m / ((v * scale).sqrt() + epsilon), params, first, second)
        if case.algorithm == "dqn":
            lagged = tree_map(lambda old, w: torch.where(t % EVERY == 0, w, old), lagged, params["q"])
        elif case.algorithm == "sac":
            lagged = tree_map(lambda old, w: old + TAU * (w - old), lagged, params["critic"])
        return (params, lagged, first, second, t), torch.stack(scalars), *rest

    function = torch.no_grad()(torch.compile(functional, fullgraph=True))

    def step(batch: Any) -> Any:
        nonlocal state
        state, scalars, *rest = function(state, batch)
        return scalars, rest[0] if rest else None

    return step
