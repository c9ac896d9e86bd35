"""Small games of texts: sums with answers that can be verified, twenty questions over a generated world, and walks in a
graph, the task of trlX's example `randomwalks`."""

from __future__ import annotations

from string import ascii_lowercase, digits
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from etude.base.errors import ConfigError
from etude.language.environment import LEGAL
from etude.language.wordle import words

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
GOAL = 0  # of walks
QUESTIONS = 20
PROPERTIES = (
    "alive", "big", "bright", "cheap", "clean", "cold", "dark", "edible", "fast", "flat", "fluffy", "green", "hard",
    "heavy", "hollow", "loud", "metal", "new", "old", "open", "plain", "red", "rough", "round", "sharp", "soft",
    "sticky", "sweet", "tall", "warm", "wet", "wooden",
)  # fmt: skip


class Arithmetic(gym.Env[str, str]):
    """Answer one question such as `"12+7="`: reward 1 for the number itself, `"19"`, else 0.

    largest: of the two numbers, each from 0. operations: of `+-*`.
    """

    def __init__(self, largest: int = 20, operations: str = "+"):
        if type(largest) is not int or not 0 < largest < 10**9:
            raise ConfigError(f"Arithmetic: largest = {largest!r}; expected a whole number from 1 to 999,999,999.")
        if not operations or not set(operations) <= OPERATIONS.keys():
            raise ConfigError(f"Arithmetic: operations = {operations!r}; expected some of {''.join(OPERATIONS)}.")
        self._largest, self._operations, self._answer = largest, operations, ""
        answers = [largest * largest if "*" in operations else 2 * largest, -largest if "-" in operations else 0]
        asked, said = len(f"{largest}+{largest}="), max(len(str(answer)) for answer in answers)
        self.metadata = {"render_modes": [], "context": asked + said + 1}
        self.observation_space = Text(asked, min_length=0, charset=digits + operations + "=")
        self.action_space = Text(said, charset=digits + "-" * ("-" in operations))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        first, second = self.np_random.integers(self._largest + 1, size=2).tolist()
        operation = self._operations[self.np_random.integers(len(self._operations))]
        self._answer = str(OPERATIONS[operation](first, second))
        return f"{first}{operation}{second}=", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self._answer), True, False, {}


class TwentyQuestions(gym.Env[str, str]):
    """Find a hidden thing within twenty questions, at a reward of -1 for each but the one that names it.

    `"is it red?"` is answered by `" yes\\n"` or `" no\\n"`, `"is it biftp?"`, which names a thing, too; whatever else
    is asked by `" what?\\n"`.

    things, properties: how many there are. Each thing has each property or not, by lot, and no two have the same ones.
    seed: of the world, which all episodes share.
    """

    metadata: dict[str, Any] = {"render_modes": [], "context": QUESTIONS * 24}

    def __init__(self, things: int = 32, properties: int = 12, seed: int = 0):
        if not (type(things) is type(properties) is int) or not 2 <= things <= 2 ** min(properties - 1, 12):
            raise ConfigError(
                f"TwentyQuestions: things = {things!r}, properties = {properties!r}; expected whole numbers, from 2 "
                "things to half of as many as the properties tell apart, 4,096 at most."
            )
        if properties > len(PROPERTIES):
            raise ConfigError(f"TwentyQuestions: properties = {properties}; there are {len(PROPERTIES)}.")
        rng = np.random.default_rng(seed)
        self.things: tuple[str, ...] = words(things, seed)
        self.properties: tuple[Any, ...] = tuple(sorted(rng.permutation(PROPERTIES)[:properties].tolist()))
        codes = dict.fromkeys(rng.permutation(2**properties)[:things].tolist() if properties <= 16 else ())
        while len(codes) < things:  # of more than can be listed
            codes[int(rng.integers(2**properties))] = None
        self.has: Any = (np.array(list(codes))[:, None] >> np.arange(properties)) % 2 == 1  # [things, properties]
        questions = tuple(f"is it {each}?" for each in (*self.properties, *self.things))
        self._answers = {question: i for i, question in enumerate(questions)}
        self._info: dict[str, Any] = {LEGAL: questions}
        self.action_space = Text(max(map(len, questions)), min_length=1, charset=ascii_lowercase + " ?")
        self.observation_space = Text(7, min_length=0, charset=ascii_lowercase + " ?\n")
        self._hidden = self._asked = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._hidden, self._asked = int(self.np_random.integers(len(self.things))), 0
        return "", dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._asked += 1
        asked = self._answers.get(action)
        found = asked == len(self.properties) + self._hidden
        if asked is None:
            answer = "what?"
        else:
            answer = "yes" if found or asked < len(self.properties) and self.has[self._hidden, asked] else "no"
        over = found or self._asked == QUESTIONS
        return f" {answer}\n", 0.0 if found else -1.0, over, False, dict(self._info)


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
        # [nodes] how many steps the shortest walk to the goal has; -1 where there is none
        self.distances = np.full(len(self.graph), -1)
        self.distances[GOAL], steps = 0, 0
        while (there := self.distances == steps).any():
            steps += 1
            self.distances[self.graph[:, there].any(1) & (self.distances < 0)] = steps
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
