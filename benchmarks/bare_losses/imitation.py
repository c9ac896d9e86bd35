"""Losses of policies that learn by PPO, and of what tells their steps from those of an expert."""

from __future__ import annotations

from typing import Any

from bare_losses.policies import gaussian_log_prob, proximal


def gail(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    seen, taken = _both(f, batch, "observation"), f.clip(_both(f, batch, "action"), -1.0, 1.0)
    logits = f.mlp(params["discriminator"][0], f.concatenate([seen, taken], -1), f.tanh)[:, 0]
    model, _ = proximal(f, params["model"], batch)
    return {"model": model, "discriminator": lambda: _told_apart(f, logits)}, None


def airl(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    reward, potential = params["discriminator"]
    model, log_prob = proximal(f, params["model"], batch)
    with f.no_gradient():
        actor, log_std, _ = params["model"]
        expert = gaussian_log_prob(f, actor, log_std, batch["expert_observation"], batch["expert_action"])
        log_prob = f.stop(f.concatenate([log_prob, expert], 0))
    seen, following, action = (_both(f, batch, name) for name in ("observation", "next_observation", "action"))
    judged = f.concatenate([seen, f.clip(action, -1.0, 1.0)], -1)
    states = f.mlp(potential, f.concatenate([seen, following], 0), f.tanh)[:, 0]
    states = f.reshape(states, (2, -1))
    worth = f.mlp(reward, judged, f.tanh)[:, 0]
    logits = worth + _both(f, batch, "discount") * states[1] - states[0] - log_prob
    return {"model": model, "discriminator": lambda: _told_apart(f, logits)}, None


def _both(f: Any, batch: Any, name: str) -> Any:
    """The policy's, and after them the expert's."""
    return f.concatenate([batch[name], batch[f"expert_{name}"]], 0)


def _told_apart(f: Any, logits: Any) -> Any:
    """The mean loss over logits of the policy's steps and, after them, of as many of the expert's."""
    return f.mean(f.softplus(logits)) - 0.5 * f.mean(f.reshape(logits, (2, -1))[1])
