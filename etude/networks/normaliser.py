"""Normalisation of observations by running moments: part of the agent, so that it is saved and shipped with the
weights and frozen where the agent is only evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import ops, trees
from etude.networks.encoding import at, leaves
from etude.spaces import Box, Space
from etude.trees import Tree

CLIP = 10.0  # standard deviations, as in Stable-Baselines3 and the original OpenAI baselines


def normalised_paths(space: Space) -> list[tuple[str, tuple]]:
    """(dotted name, path) of the parts that are normalised: Box of floats. Images, choices and masks stay as they
    are."""
    return [
        (".".join(str(key) for key in path) or "all", path)
        for path, part in leaves(space)
        if isinstance(part, Box) and np.issubdtype(part.dtype, np.floating)
    ]


class RunningMoments:
    """Mean and variance of every normalised part of the observations seen so far, merged chunk by chunk.

    Chan, Golub & LeVeque 1983, doi:10.1080/00031305.1983.10483115. Kept in float64.
    """

    def __init__(self, space: Space):
        self.paths = normalised_paths(space)
        shapes = {".".join(str(key) for key in path) or "all": part.shape for path, part in leaves(space)}
        self.count = 0.0
        self.mean = {name: np.zeros(shapes[name]) for name, _ in self.paths}
        self.variance = {name: np.ones(shapes[name]) for name, _ in self.paths}

    def update(self, observation: Tree) -> None:
        """Take in observations [T, N, ...]."""
        rows = trees.leaves(observation)[0]
        n = float(rows.shape[0] * rows.shape[1])
        for name, path in self.paths:
            x = np.asarray(at(observation, path), np.float64)
            mean, variance = x.mean((0, 1)), x.var((0, 1))
            total = self.count + n
            delta = mean - self.mean[name]
            merged = self.variance[name] * self.count + variance * n + delta**2 * self.count * n / total
            self.mean[name] = self.mean[name] + delta * n / total
            self.variance[name] = merged / total
        self.count += n

    def values(self) -> dict[str, np.ndarray]:
        """What the network part of the normaliser takes: means and reciprocal standard deviations, float32."""
        means = {f"{name}.mean": self.mean[name].astype(np.float32) for name, _ in self.paths}
        scales = {
            f"{name}.scale": (1 / np.sqrt(self.variance[name] + 1e-8)).astype(np.float32) for name, _ in self.paths
        }
        return means | scales

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": dict(self.mean), "variance": dict(self.variance)}

    def restore(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.variance = state["count"], dict(state["mean"]), dict(state["variance"])


def normalise(values: dict[str, Any], paths: list[tuple[str, tuple]], observation: Tree) -> Tree:
    """`(x - mean) * scale`, clipped, for the normalised parts; the others unchanged."""
    for name, path in paths:
        x = (at(observation, path) - values[f"{name}.mean"]) * values[f"{name}.scale"]
        observation = _replace(observation, path, ops.clip(x, -CLIP, CLIP))
    return observation


def _replace(tree: Tree, path: tuple, value: Any) -> Tree:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return {**tree, key: _replace(tree[key], rest, value)}
    return tuple(_replace(part, rest, value) if i == key else part for i, part in enumerate(tree))


class RunningScale:
    """The standard deviation of the running discounted return, by which rewards are divided.

    As in OpenAI baselines' VecNormalize. [N] returns, one per environment column; float64.
    """

    def __init__(self, environments: int):
        self.returns = np.zeros(environments)
        self.count, self.mean, self.variance = 0.0, 0.0, 1.0

    def update(self, reward: np.ndarray, ended: np.ndarray, columns: np.ndarray, gamma: float) -> None:
        """Take in rewards [T, N] and episode ends [T, N] of some columns."""
        history = np.empty(reward.shape)
        running = self.returns[columns]
        for t in range(len(reward)):
            running = running * gamma + reward[t]
            history[t] = running
            running = np.where(ended[t], 0.0, running)
        self.returns[columns] = running
        n, mean, variance = float(history.size), history.mean(), history.var()
        total, delta = self.count + n, mean - self.mean
        self.variance = (self.variance * self.count + variance * n + delta**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + delta * n / total, total

    @property
    def factor(self) -> float:
        """What rewards are multiplied by."""
        return float(1.0 / np.sqrt(self.variance + 1e-8))

    def state(self) -> dict[str, Any]:
        return {"returns": self.returns, "count": self.count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, Any]) -> None:
        self.returns = np.array(state["returns"])
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]
