"""Walks in a graph, the task of trlX's example `randomwalks`."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from etude.base.errors import ConfigError
from etude.language.environment import LEGAL

GOAL = 0


class GraphWalks(gym.Env[str, str]):
    """Walk to the node `a` of a directed graph, in as few steps as possible.

    The environment says a random node; the agent says one node after the other, and the environment nothing more. The
    reward at the end is trlX's optimality: (length - nodes of the walk) / (length - nodes of the shortest walk), 1 for
    a shortest one and 0 for one that has not arrived after `length` nodes, or says a node that no edge leads to.

    nodes: up to 26, with an edge from each to each with probability `edges`. seed: of the graph; the default is trlX's.
    list_edges: name the nodes that edges lead to as legal texts, so that no other can be said: its random walks.
    """

    def __init__(
        self, nodes: int = 21, length: int = 10, edges: float = 0.1, seed: int = 1002, list_edges: bool = True
    ):
        if type(nodes) is not int or not 2 <= nodes <= 26 or type(length) is not int or length < 3:
            raise ConfigError(
                f"GraphWalks: nodes = {nodes!r}, length = {length!r}; expected 2 to 26 nodes, a length of at least 3."
            )
        if not 0.0 < edges <= 1.0:
            raise ConfigError(f"GraphWalks: edges = {edges!r}; expected a probability above 0.")
        self.metadata = {"render_modes": [], "context": length}
        self.graph = _graph(nodes, edges, seed)  # [from, to] bool
        self.distances = _distances(self.graph)  # [nodes] steps to the goal
        self._length, self._list = length, list_edges
        self._starts = np.flatnonzero((self.distances > 0) & (self.distances < length - 1))
        if not len(self._starts):
            raise ConfigError(
                f"GraphWalks: no node of seed = {seed} reaches the goal. Give another seed, or more edges."
            )
        self.action_space = Text(1, charset=ascii_lowercase[:nodes])
        self.observation_space = Text(1, min_length=0, charset=ascii_lowercase[:nodes])
        self._walk: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._walk = [int(self.np_random.choice(self._starts))]
        return ascii_lowercase[self._walk[0]], self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        here, there = self._walk[-1], ascii_lowercase.find(action)
        valid = 0 <= there < len(self.graph) and bool(self.graph[here, there])
        if valid:
            self._walk.append(there)
        arrived = valid and there == GOAL
        nodes = len(self._walk) if arrived else self._length
        reward = (self._length - nodes) / (self._length - 1 - int(self.distances[self._walk[0]])) if arrived else 0.0
        over = arrived or not valid or len(self._walk) == self._length
        return "", reward, over, False, {} if over else self._info()

    def _info(self) -> dict[str, Any]:
        following = np.flatnonzero(self.graph[self._walk[-1]]).tolist()
        return {LEGAL: tuple(ascii_lowercase[node] for node in following)} if self._list else {}


def _graph(nodes: int, edges: float, seed: int) -> np.ndarray:
    """The graph that trlX draws: the first in which each node has an edge from it, but those of the goal."""
    rng = np.random.RandomState(seed)  # the generator, and order, of trlX
    for _ in range(100_000):
        graph = rng.rand(nodes, nodes) > 1 - edges
        np.fill_diagonal(graph, False)
        if graph.any(1).all():
            graph[GOAL] = False
            return graph
    raise ConfigError(f"GraphWalks: edges = {edges}: of 100,000 graphs, none has an edge from each node. Give more.")


def _distances(graph: np.ndarray) -> np.ndarray:
    """[nodes] how many steps the shortest walk to the goal has; -1 where there is none."""
    found = np.full(len(graph), -1)
    found[GOAL], steps = 0, 0
    while (found == steps).any():
        reached = graph[:, found == steps].any(1) & (found < 0)
        steps += 1
        found[reached] = steps
    return found
