"""PPO updates of Stable-Baselines3, or by CleanRL's formulas, from what compare_ppo_update.py has recorded of etude's.

`PYTHON peers_ppo_update.py PEER ENVIRONMENT TIME_LIMIT RECORDED.npz ANSWER.npz`, in an environment of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch

GAMMA, LAMBDA, CLIP, RATE, BOUND = 0.99, 0.95, 0.2, 3e-4, 0.5
LAYERS = {  # the names of Stable-Baselines3's layers, by those of etude's
    "policy": ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"),
    "critic": ("mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"),
}


class Recorded:
    """What was recorded: arrays by name, and by update and name."""

    def __init__(self, path: str):
        with np.load(path) as held:
            self.arrays = dict(held)
        self.names = self.arrays["names"].tolist()
        self.updates = 1 + max(int(name.split("/")[0]) for name in self.arrays if name[0].isdigit())

    def __call__(self, update: int, name: str) -> np.ndarray:
        return self.arrays[f"{update}/{name}"]

    def initial(self) -> dict[str, torch.Tensor]:
        """The weights at the start, by etude's names."""
        return {name: torch.tensor(self.arrays[f"initial/{name}"]) for name in self.names}


class Seeded(gym.Wrapper):
    """Resets with one seed after the other, and keeps the actions that it was given."""

    def __init__(self, env: gym.Env, seeds: Iterator[int]):
        super().__init__(env)
        self.seeds, self.taken = seeds, list[np.ndarray]()

    def reset(self, **_: Any) -> Any:
        return self.env.reset(seed=int(next(self.seeds)))

    def step(self, action: np.ndarray) -> Any:
        self.taken.append(np.array(action))
        return self.env.step(action)


class GradientSteps:
    """Collects what GRADIENT_STEP of compare_ppo_update.py names. parameters: by etude's names, and whether each is
    transposed."""

    def __init__(self, parameters: dict[str, tuple[torch.Tensor, bool]]):
        self.parameters, self.found = parameters, dict[str, list]()

    def keep(self, name: str, value: Any) -> None:
        self.found.setdefault(name, []).append(np.array(value))

    def vector(self, gradients: bool) -> np.ndarray:
        parts = []
        for name in sorted(self.parameters):
            parameter, transposed = self.parameters[name]
            value = parameter.grad if gradients else parameter.detach()
            parts.append((value.T if transposed else value).reshape(-1).numpy().copy())
        return np.concatenate(parts)

    def bound(self) -> None:
        """Bound the gradients, and keep them before and after."""
        self.keep("gradient", self.vector(True))
        norm = CLIP_NORM([parameter for parameter, _ in self.parameters.values()], BOUND)
        self.keep("gradient_norm", norm.item())
        self.keep("bounded_gradient", self.vector(True))

    def arrays(self, update: int) -> dict[str, np.ndarray]:
        return {f"{update}/{name}": np.stack(values) for name, values in self.found.items()}


CLIP_NORM = torch.nn.utils.clip_grad_norm_  # as it is, before a test double takes its place


def stable_baselines3(recorded: Recorded, environment: str, limit: int, over_n: bool) -> dict[str, np.ndarray]:
    """Its own rollouts and updates; given are the actions, and the rows of each minibatch.

    over_n: whether the deviation of advantages is that over n.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import ConvertCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    seeded = Seeded(gym.make(environment, max_episode_steps=limit), iter(recorded.arrays["seeds"]))
    scaled = gym.wrappers.RescaleAction(seeded, np.float32(-1), np.float32(1))
    model = PPO("MlpPolicy", DummyVecEnv([lambda: scaled]), device="cpu", seed=0)
    named, parameters = dict(model.policy.named_parameters()), {"model.log_std.value": (model.policy.log_std, False)}
    for part, layers in LAYERS.items():
        for i, layer in enumerate(layers):
            for kind in ("weight", "bias"):
                parameters[f"model.{part}.dense{i}.{kind}"] = (named[f"{layer}.{kind}"], kind == "weight")
    assert len(parameters) == len(named)
    found: dict[str, np.ndarray] = {}
    for name, value in recorded.initial().items():
        parameter, transposed = parameters[name]
        found[f"initial/{name}"] = parameter.detach().numpy().copy()
        parameter.data = (value.T if transposed else value).clone().contiguous()
    total = recorded.updates * model.n_steps
    _, callback = model._setup_learn(total, callback=ConvertCallback(lambda *_: True))
    for update in range(recorded.updates):
        seeded.taken = []
        found |= _rollout_of(model, callback, recorded, update, seeded)
        told = GradientSteps(parameters)
        _train(model, recorded(update, "rows"), told, over_n)
        found |= told.arrays(update)
    return found


def _rollout_of(model: Any, callback: Any, recorded: Recorded, update: int, seeded: Seeded) -> dict[str, np.ndarray]:
    actions, policy, ends = iter(torch.tensor(recorded(update, "action"))), model.policy, []

    def forward(observation: torch.Tensor, deterministic: bool = False) -> Any:
        action = next(actions)[None]
        values, log_prob, _ = policy.evaluate_actions(observation, action)
        return action, values, log_prob

    def step(action: np.ndarray) -> Any:
        following, reward, done, infos = own_step(action)
        cut = infos[0].get("TimeLimit.truncated", False)
        last = infos[0].get("terminal_observation")
        ends.append((reward[0], done[0] and not cut, cut, last))
        return following, reward.copy(), done, infos

    own_step, own_forward = model.env.step, policy.forward
    model.env.step, policy.forward = step, forward
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    model.env.step, policy.forward = own_step, own_forward
    buffer = model.rollout_buffer
    now = {
        "observation": buffer.observations[:, 0],
        "taken": np.stack(seeded.taken),
        "reward": np.array([end[0] for end in ends]),
        "terminated": np.array([end[1] for end in ends]),
        "truncated": np.array([end[2] for end in ends]),
        "final_observation": np.array([end[3] for end in ends if end[3] is not None]),
        "log_prob": buffer.log_probs[:, 0],
        "value": buffer.values[:, 0],
        "advantage": buffer.advantages[:, 0],
        "return": buffer.returns[:, 0],
    }
    return {f"{update}/{name}": value.copy() for name, value in now.items()}


def _train(model: Any, rows: np.ndarray, told: GradientSteps, over_n: bool) -> None:
    """Its own `train`, with these rows [k, n] in the place of its permutations."""
    passes = iter(rows.reshape(model.n_epochs, -1))
    optimizer, own_step, own_std = model.policy.optimizer, model.policy.optimizer.step, torch.Tensor.std
    own_permutation, own_mse, own_min = np.random.permutation, torch.nn.functional.mse_loss, torch.min
    own_evaluate = model.policy.evaluate_actions

    def step(*arguments: Any, **settings: Any) -> None:
        own_step(*arguments, **settings)
        told.keep("weights", told.vector(False))

    def mse(*arguments: Any) -> torch.Tensor:
        loss = own_mse(*arguments)
        told.keep("value_loss", loss.item())
        return loss

    def smaller(*arguments: Any) -> torch.Tensor:
        surrogate = own_min(*arguments)
        told.keep("policy_loss", -surrogate.mean().item())
        return surrogate

    def evaluate(*arguments: Any) -> Any:
        values, log_prob, entropy = own_evaluate(*arguments)
        told.keep("entropy", entropy.mean().item())
        return values, log_prob, entropy

    optimizer.step, model.policy.evaluate_actions = step, evaluate
    np.random.permutation = lambda size: next(passes)
    torch.nn.functional.mse_loss, torch.min = mse, smaller
    torch.nn.utils.clip_grad_norm_ = lambda *_: told.bound()
    if over_n:
        torch.Tensor.std = lambda x: own_std(x, correction=0)
    try:
        model.train()
    finally:
        optimizer.step, model.policy.evaluate_actions = own_step, own_evaluate
        np.random.permutation, torch.Tensor.std = own_permutation, own_std
        torch.nn.functional.mse_loss, torch.min = own_mse, own_min
        torch.nn.utils.clip_grad_norm_ = CLIP_NORM


class Formulas:
    """PPO as ppo_continuous_action.py of CleanRL has it, written from its formulas: Huang et al. 2022,
    doi:10.21105/joss ("CleanRL"). Its rates do not fall here, and values are not clipped."""

    def __init__(self, weights: dict[str, torch.Tensor]):
        self.weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
        self.optimizer = torch.optim.Adam(self.weights.values(), lr=RATE, eps=1e-5)

    def network(self, part: str, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = x @ self.weights[f"model.{part}.dense{i}.weight"] + self.weights[f"model.{part}.dense{i}.bias"]
            x = torch.tanh(x) if i < 2 else x
        return x

    def policy(self, observation: torch.Tensor) -> torch.distributions.Normal:
        mean = self.network("policy", observation)
        return torch.distributions.Normal(mean, self.weights["model.log_std.value"].expand_as(mean).exp())

    def value(self, observation: torch.Tensor) -> torch.Tensor:
        return self.network("critic", observation).flatten()

    def advantages(self, value: torch.Tensor, reward: Any, done: Any, last: float) -> torch.Tensor:
        """By its loop; truncated episodes have their last value in the reward."""
        advantage, carried = torch.zeros_like(value), 0.0
        for t in reversed(range(len(value))):
            following = value[t + 1] if t + 1 < len(value) else last
            goes_on = 1.0 - float(done[t])
            error = reward[t] + GAMMA * following * goes_on - value[t]
            advantage[t] = carried = error + GAMMA * LAMBDA * goes_on * carried
        return advantage


def cleanrl(recorded: Recorded) -> dict[str, np.ndarray]:
    """Updates by CleanRL's formulas, from recorded rollouts."""
    model, found = Formulas(recorded.initial()), dict[str, np.ndarray]()
    for update in range(recorded.updates):
        part = {n: recorded(update, n) for n in ("observation", "action", "reward", "terminated", "truncated", "rows")}
        observation, action = torch.tensor(part["observation"]).float(), torch.tensor(part["action"])
        ended, reward = part["terminated"] | part["truncated"], torch.tensor(part["reward"]).float()
        with torch.no_grad():
            final = model.value(torch.tensor(recorded(update, "final_observation")).float())
            cut = torch.tensor(part["truncated"][ended] & ~part["terminated"][ended])
            reward[torch.tensor(ended)] += GAMMA * final * cut
            value, log_prob = model.value(observation), model.policy(observation).log_prob(action).sum(1)
            following = model.value(torch.tensor(recorded(update, "next_observation")).float())[0]
            advantage = model.advantages(value, reward, ended, following)
        target = advantage + value
        now = {"log_prob": log_prob, "value": value, "advantage": advantage, "return": target}
        found |= {f"{update}/{name}": x.numpy() for name, x in now.items()}
        told = GradientSteps({name: (x, False) for name, x in model.weights.items()})
        for rows in torch.tensor(part["rows"]):
            batch = (observation[rows], action[rows], log_prob[rows], advantage[rows], target[rows])
            _cleanrl_step(model, batch, told)
        found |= told.arrays(update)
    return found


def _cleanrl_step(model: Formulas, batch: tuple[torch.Tensor, ...], told: GradientSteps) -> None:
    observation, action, log_prob, advantage, target = batch
    policy = model.policy(observation)
    ratio = (policy.log_prob(action).sum(1) - log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    policy_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
    value_loss = 0.5 * ((model.value(observation) - target) ** 2).mean()
    model.optimizer.zero_grad()
    (policy_loss + value_loss).backward()  # its vf_coef of 1 is 0.5 of a value loss without the half
    told.bound()
    model.optimizer.step()
    told.keep("weights", told.vector(False))
    told.keep("policy_loss", policy_loss.item())
    told.keep("value_loss", 2 * value_loss.item())
    told.keep("entropy", policy.entropy().sum(1).mean().item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    peer, environment, limit, source, answer = sys.argv[1:]
    recorded = Recorded(source)
    if peer == "cleanrl":
        results = cleanrl(recorded)
    else:
        results = stable_baselines3(recorded, environment, int(limit), over_n=peer == "sb3")
    np.savez(answer, **results)
