"""The memory of agents that keep one: from step to step of an episode, for each environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from etude.base.trees import Tree
from etude.protocols import Weights


class Actor(Protocol):
    """What a rollout needs of an engine."""

    memory: int  # how many numbers the agent keeps for each environment from step to step of an episode; 0 for most

    def act(self, observation: Tree, memory: np.ndarray | None = None) -> Any:
        """What the explorer turns into actions, for observations [N, ...].

        Agents with a memory are called with it, [N, M] float32 and zeros at the first step of an episode, and return
        also the memory for the next step. Others are called with observations alone.
        """

    def load(self, weights: Weights) -> None:
        """Act with these from now on."""


class Recall(Protocol):
    """Acts for N environments, and remembers for them what the agent keeps."""

    memory: np.ndarray  # [N, M] float32 for the next step
    act: Callable[[Tree], Any]  # from observations [N, ...] to what the explorer turns into actions

    def forget(self, i: int) -> None:
        """The next step of the environment at this position is the first of an episode."""


def recall_of(actor: Actor, memory: np.ndarray, noted: np.ndarray | None = None, t: int = 0) -> Recall:
    """Goes on from `memory` [N, M]. noted: where to note the memory of each step [T, N, M], from time step t on."""
    return _Remembering(actor, memory, noted, t) if actor.memory else _Nothing(actor, memory)


class _Nothing:
    """Nothing is kept, and acting costs nothing more."""

    def __init__(self, actor: Actor, memory: np.ndarray):
        self.act, self.memory = actor.act, memory

    def forget(self, i: int) -> None: ...


class _Remembering:
    def __init__(self, actor: Actor, memory: np.ndarray, noted: np.ndarray | None, t: int):
        self._actor, self.memory, self._noted, self._t = actor, memory, noted, t

    def act(self, observation: Tree) -> Any:
        if self._noted is not None:
            self._noted[self._t] = self.memory
            self._t += 1
        output, self.memory = self._actor.act(observation, self.memory)
        return output

    def forget(self, i: int) -> None:
        self.memory[i] = 0.0
