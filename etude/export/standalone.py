"""What every `act.py` of an exported policy begins with, as it is here: it needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.envs.observations import flat_mask


def as_array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A part of an observation [1, *shape]. ValueError for another shape."""
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; expected {shape}, as the environment returns it.")
    return array.astype(dtype)[None]


class ActingPolicy:
    """Acts in one environment: keeps what the policy remembers from one step of an episode to the next.

    program: from arrays [N, ...] by name to what comes out by name. observation: (name, path in the observation, dtype,
    shape) of what it takes. memory: (name, dtype, shape) of what it remembers. flags: the length of action masks that
    come beside observations; 0: none do. action: from what comes out to an action of the environment.
    """

    def __init__(self, program: Any, observation: Any, memory: Any, flags: int, action: Any):
        self._program, self._observation, self._memory = program, observation, memory
        self._flags, self._action = flags, action
        self._remembered: dict[str, np.ndarray] = {}

    def act(self, observation: Any, action_mask: Any = None, first: bool = False, reward: float = 0.0) -> Any:
        """The best action for one observation, both as the environment has them.

        action_mask: what is in the info of its step; of no use where observations hold it. None allows all.
        first: whether an episode begins with it, where the policy remembers earlier steps.
        reward: that came with the observation; needed by policies that act by their rewards so far.
        """
        inputs = {}
        for name, path, dtype, shape in self._observation:
            value = observation
            for key in path:
                value = value[key]
            inputs[name] = as_array(name, value, dtype, shape)
        if self._flags:
            mask = np.ones(self._flags, bool) if action_mask is None else flat_mask(action_mask)
            inputs["action_mask"] = as_array("action_mask", mask, "bool", (self._flags,))
        if self._memory:
            inputs["first"] = np.array([first or not self._remembered])
            inputs["reward"] = np.array([reward], np.float32)
            begun = {name: np.zeros((1, *shape), dtype) for name, dtype, shape in self._memory}
            inputs |= self._remembered or begun
        outputs = self._program(inputs)
        self._remembered = {name: outputs[f"next_{name}"] for name, _, _ in self._memory}
        return self._action(outputs)
